"""The schedules by name.

| name | a block's gradient | readout | where |
|---|---|---|---|
| ``global_backprop`` | crosses all blocks | plain step | this process |
| ``global_ddp`` | crosses all blocks | plain step | a process a replica, each with its rows of the batch |
| ``global_1f1b`` | crosses all blocks | plain step | a process a stage, micro-batches in a pipeline |
| ``local_independent`` | stops at the stage | a copy a stage; the final one is the model's | this process |
| ``local_async`` | stops at the stage | a copy a stage; the final one is the model's | a process a stage |
| ``rgc_sync`` | stops at the stage | consensus of the stages' gradients, after every batch | this process |
| ``rgc_async`` | stops at the stage | the same, read through snapshots of bounded age | a process a stage |
"""

from thinwire.local.asynchronous import LocalAsync, RGCAsync
from thinwire.local.data_parallel import GlobalDDP
from thinwire.local.engine import ProcessSchedule
from thinwire.local.pipeline import Global1F1B
from thinwire.local.schedule import GlobalBackprop, InProcess, LocalIndependent, RGCSync, Schedule
from thinwire.local.stages import Batches, TrainingPlan

SCHEDULES: dict[str, type[InProcess] | type[ProcessSchedule]] = {
    "global_backprop": GlobalBackprop,
    "global_ddp": GlobalDDP,
    "global_1f1b": Global1F1B,
    "local_independent": LocalIndependent,
    "local_async": LocalAsync,
    "rgc_sync": RGCSync,
    "rgc_async": RGCAsync,
}


def open_schedule(name: str, plan: TrainingPlan, batches: Batches) -> Schedule:
    """Start the schedule of that name. Raises ValueError for an unknown one, or a plan that it cannot follow.

    ``global_backprop`` ignores the plan's stages; only ``rgc_async`` and overlapped processes read its staleness.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name](plan, batches)
