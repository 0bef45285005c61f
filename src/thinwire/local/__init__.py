"""Local learning: a transformer in stages that each train on their own loss, and share one readout.

``open_schedule(name, plan, batches)`` starts any of the schedules behind one interface; ``save`` and ``resume`` carry a
run over an interruption; ``memory_ledger`` says where a schedule's bytes go.
"""

from thinwire.local.asynchronous import APPLIED, READ
from thinwire.local.memory import memory_ledger
from thinwire.local.saved import resume, save
from thinwire.local.schedule import Schedule
from thinwire.local.schedules import SCHEDULES, open_schedule
from thinwire.local.stages import Batches, TrainingPlan

__all__ = [
    "APPLIED",
    "READ",
    "SCHEDULES",
    "Batches",
    "Schedule",
    "TrainingPlan",
    "memory_ledger",
    "open_schedule",
    "resume",
    "save",
]
