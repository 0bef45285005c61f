"""Batches and held-out text of ``local_learning``; imported by the stage workers, so it imports little."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from thinwire.data import ByteText, batch, segments
from thinwire.models import ByteTransformer, bits_per_byte, next_byte_loss

WINDOWS = 16
"""Windows of one context that a held-out segment consists of."""


def named_seed(seed: int, *names: object) -> int:
    """Return a 63-bit seed for the generator of that name, so that no two purposes share random numbers."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


@dataclass(frozen=True)
class TextBatches:
    """Random windows of a corpus's training part: the batch of a step depends on seed and step alone."""

    folder: Path
    seed: int
    rows: int
    context: int

    @cached_property
    def text(self) -> ByteText:
        """The corpus, mapped at first use in each process."""
        return ByteText(self.folder)

    def __call__(self, step: int) -> torch.Tensor:
        """Return integers [rows, context + 1]."""
        generator = torch.Generator().manual_seed(named_seed(self.seed, "batch", step))
        return batch(self.text.train, generator, self.rows, self.context)

    def __reduce__(self) -> tuple[type, tuple[Path, int, int, int]]:
        """Travel without the mapped text, which would be copied whole."""
        return TextBatches, (self.folder, self.seed, self.rows, self.context)


@torch.no_grad()
def held_out_bits(
    model: ByteTransformer, folder: Path, count: int, part: Literal["validation", "test"] = "test"
) -> list[float]:
    """Return bits per byte of ``count`` segments of a held-out part, the same for every model of one context.

    A segment is predicted in windows of one context, each of which begins without memory. Raises ValueError when the
    segments do not fit.
    """
    context = model.config.context
    bits = []
    for segment in segments(getattr(ByteText(folder), part), WINDOWS * context + 1, count):
        inputs, targets = segment[:-1].view(WINDOWS, context), segment[1:].view(WINDOWS, context)
        bits.append(bits_per_byte(next_byte_loss(model(inputs), targets).item()))
    return bits
