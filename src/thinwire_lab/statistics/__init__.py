"""One-sided bounds of paired comparisons with few seeds: pure functions of arrays, used by both wings of the harness.

``analysis.noninferiority`` is their public face for readers; the study ``interval_coverage`` runs the very same
functions on simulated differences, many replicates at a time. Nothing here imports torch or anything else of ours.
"""
