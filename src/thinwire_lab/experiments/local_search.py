"""Search for the settings that ``local_learning`` is judged with: its quality rows, scored on validation text.

Nothing is judged here. The test part and the seeds of the verdicts stay unseen by what is chosen.
"""

from typing import Literal

from pydantic import Field

from thinwire_lab.experiments import local_learning
from thinwire_lab.recorder import Recorder


class Config(local_learning.Config):
    """Values of a row, those of a quality row of ``local_learning``."""

    part: Literal["quality"] = Field(default="quality", description="what the row measures")
    scored: Literal["validation"] = Field(default="validation", description="part of the text that held_out is of")


def run(config: Config, record: Recorder) -> None:
    """Train the row's arm and score it."""
    local_learning.train_and_score(config, record)
