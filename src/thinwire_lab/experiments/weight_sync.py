"""Do patches move the same versions as full weights, and how much less do they move? (P-lossless to P-learning)

``training``: a trainer and a rollout worker train by GRPO in two processes, once with full weights and once with
patches in between; with the same seed both must give the same digests, losses and rewards. ``link``: kept versions of
a training run cross a shaped link as full weights and as patches, and the seconds are measured.
"""

import tempfile
from pathlib import Path

from thinwire_lab.experiments.grpo_inputs import model_source
from thinwire_lab.experiments.weight_sync_link import busy_rows, compute_rows, transfer_rows
from thinwire_lab.experiments.weight_sync_setup import Config, Rows, row
from thinwire_lab.experiments.weight_sync_training import run_training
from thinwire_lab.recorder import Recorder

__all__ = ["Config", "run"]


def run(config: Config, record: Recorder) -> None:
    """Measure one row; ``link`` reads the kept versions ``record.inputs["versions"]``."""
    source = model_source(config.model, record.assets)
    if config.part == "training":
        with tempfile.TemporaryDirectory(prefix="thinwire-weight-sync-") as folder:
            rows = run_training(config, record.seed, Path(folder), source, record.assets, threads=record.threads)
    else:
        rows = _link(config, record, source)
    for step, metric, value, scope in sorted(rows, key=lambda entry: entry[0]):
        record.record(step, metric, value, scope)


def _link(config: Config, record: Recorder, source: str) -> Rows:
    computed, seconds = compute_rows(config, record.seed, source, record.assets)
    record.progress(1, 2)
    transfers, moved = transfer_rows(config, record.seed, record.inputs["versions"])
    if not moved["patch"]:
        record.note("link", "no kept version differs from the one before it: nothing to move")
        return [*transfers, *computed, row(0, "digest_checks", 0), row(0, "digest_mismatches", 0)]
    busy, unreached = busy_rows(config, seconds, moved)
    if unreached:
        record.note("bandwidth_90", unreached)
    return transfers + computed + busy
