"""Local learning: a transformer in stages that each train on their own loss, and share one readout.

``open_schedule(name, plan, batches)`` starts any of the schedules behind one interface; ``StageEngine`` is the engine
of the asynchronous one.
"""

from thinwire.local.consensus import mean_gradient
from thinwire.local.engine import StageEngine
from thinwire.local.schedules import SCHEDULES, Schedule, open_schedule
from thinwire.local.stages import Batches, Stage, TrainingPlan, cut

__all__ = [
    "SCHEDULES",
    "Batches",
    "Schedule",
    "Stage",
    "StageEngine",
    "TrainingPlan",
    "cut",
    "mean_gradient",
    "open_schedule",
]
