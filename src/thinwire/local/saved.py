"""Save a schedule to a file and go on from it: safetensors, with the schedule's name, its plan and its steps beside.

A run that is saved, resumed and finished ends in the bits of one that was never interrupted, where the schedule itself
is repeatable.
"""

import dataclasses
import json
import os
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from thinwire.local.schedule import Schedule
from thinwire.local.schedules import SCHEDULES, open_schedule
from thinwire.local.stages import Batches, TrainingPlan


def _described(plan: TrainingPlan) -> dict[str, object]:
    described: dict[str, object] = json.loads(json.dumps(dataclasses.asdict(plan)))
    return described


def save(schedule: Schedule, path: Path) -> None:
    """Write the schedule's state to ``path``; the file appears whole or not at all. It trains on afterwards."""
    name = next(name for name, kind in SCHEDULES.items() if type(schedule) is kind)
    metadata = {"schedule": name, "done": str(schedule.done), "plan": json.dumps(_described(schedule.plan))}
    state = {key: value.detach().contiguous().clone() for key, value in schedule.state().items()}
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        save_file(state, partial, metadata=metadata)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def resume(path: Path, plan: TrainingPlan, batches: Batches) -> Schedule:
    """Start the schedule that ``path`` was saved from, at the step where it stood.

    Raises ValueError when the file is none of ``save``, or was saved under another plan (``threads`` apart).
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except SafetensorError as error:
        raise ValueError(f"{path}: not a safetensors file: {error}") from None
    if not {"schedule", "done", "plan"} <= metadata.keys():
        raise ValueError(f"{path}: no saved schedule: its metadata lacks schedule, done or plan")
    theirs, ours = json.loads(metadata["plan"]), _described(plan)
    differing = [key for key in ours if key != "threads" and theirs.get(key) != ours[key]]
    if differing:
        key = differing[0]
        raise ValueError(f"{path}: saved under another plan: {key} was {theirs.get(key)!r}, is {ours[key]!r}")
    schedule = open_schedule(metadata["schedule"], plan, batches)
    try:
        schedule.load(state, int(metadata["done"]))
    except BaseException:
        schedule.close()
        raise
    return schedule
