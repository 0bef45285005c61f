"""Rounds between trainers: DDP, DiLoCo and PULSELoCo over torch.distributed, with every byte counted."""

from thinwire.outer.exchange import Exchange, Traffic, join
from thinwire.outer.rounds import DDP, DiLoCo, Outcome, PulseLoCo, Strategy, outer_step, split

__all__ = [
    "DDP",
    "DiLoCo",
    "Exchange",
    "Outcome",
    "PulseLoCo",
    "Strategy",
    "Traffic",
    "join",
    "outer_step",
    "split",
]
