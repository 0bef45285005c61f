"""Study outer_rounds: what trainers must tell each other, and what it costs in quality to tell less.

Arms: DDP, DiLoCo and PULSELoCo, each trainer a process of its own on gloo. Two tasks: GRPO on pretrained weights,
where the bytes are judged, and a byte model that goes on on another text, where enough paired seeds fit into the time
to judge quality.
"""

import tempfile
from pathlib import Path

from thinwire.spawn import run_workers
from thinwire_lab.experiments.outer_rounds_trainer import Config, Reading
from thinwire_lab.recorder import Recorder

__all__ = ["Config", "run"]

MEANS = ("reward", "loss", "has_advantage", "round_bytes", "round_link_bytes", "sent_share")
"""Metrics that are also recorded as the mean over the trainers; the others are the same on all or follow from these."""


def run(config: Config, record: Recorder) -> None:
    """Train with one process a trainer, which share the row's threads; record by round and trainer, and over all.

    Raises ValueError when the row has fewer threads than trainers.
    """
    if record.threads < config.trainers:
        raise ValueError(f"{config.trainers} trainers need as many threads; the row has {record.threads}")
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{folder}/rendezvous"
        readings = _grpo(config, record, rendezvous) if config.task == "grpo" else _text(config, record, rendezvous)
    _record(readings, record)


def _grpo(config: Config, record: Recorder, rendezvous: str) -> list[list[Reading]]:
    from thinwire_lab.experiments.outer_rounds_grpo import train_grpo  # noqa: PLC0415 - transformers, for this task only

    args = (rendezvous, config, record.seed, record.assets)
    return run_workers(train_grpo, args, workers=config.trainers, threads=record.threads // config.trainers)


def _text(config: Config, record: Recorder, rendezvous: str) -> list[list[Reading]]:
    from thinwire_lab.experiments.outer_rounds_text import ANCHOR, train_text  # noqa: PLC0415 - as above

    base: Path | None = record.inputs.get("base")
    if config.task == "text" and base is None:
        raise ValueError("a row of task text starts from a base row's weights; name it under needs: base")
    args = (rendezvous, config, record.seed, record.assets, base)
    results = run_workers(train_text, args, workers=config.trainers, threads=record.threads // config.trainers)
    if config.task == "base" and record.versions is not None:
        (record.versions / ANCHOR).write_bytes(results[0][1])
    return [readings for readings, _ in results]


def _record(readings: list[list[Reading]], record: Recorder) -> None:
    for rank, own in enumerate(readings):
        for step, metric, value in own:
            record.record(step, metric, value, scope=f"trainer{rank}")
    by_trainer = [{(step, metric): value for step, metric, value in own} for own in readings]
    for (step, metric), first in by_trainer[0].items():
        values = [own[step, metric] for own in by_trainer]
        if metric in MEANS:
            record.record(step, metric, sum(values) / len(values))
        elif metric in ("diloco_over_sent", "ddp_over_sent"):
            record.record(step, metric, len(values) / sum(1.0 / value for value in values))
        elif metric == "exchange_seconds":
            record.record(step, metric, max(values))
        elif len(set(values)) == 1:
            record.record(step, metric, first)
        else:
            raise ValueError(f"round {step}: {metric} differs between trainers: {values}")
