"""What the studies that train by GRPO start from: where the model is, and the task that a configuration names."""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from thinwire.tasks import Arithmetic, Task, Written
from thinwire_lab.assets.hub import written_questions

PACKAGES = "packages"
"""Folder of the assets that holds downloads."""


def model_source(model: str, assets: Path) -> str:
    """Return the asset's folder where it exists, else the name for transformers to find."""
    return str(assets / model) if (assets / model).is_dir() else model


def make_task(
    name: str,
    kinds: Mapping[str, float],
    *,
    shots: int,
    generator: torch.Generator,
    tokenizer: PreTrainedTokenizerBase,
    assets: Path,
) -> Task:
    """Return the task ``name``: ``arithmetic`` with shots drawn from ``generator``, or a written data set's questions.

    Raises AssetError when a data set is neither below ``assets`` nor reachable.
    """
    if name == "arithmetic":
        return Arithmetic(kinds, shots=shots, generator=generator)
    return Written(written_questions(name, tokenizer, assets / PACKAGES), final="boxed" if name == "math" else "number")
