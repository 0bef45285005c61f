"""The research harness: studies are planned, run, summarised, judged, drawn and reported from here.

This package imports nothing by itself, so that the digest of a study covers only the modules that it reaches.
"""
