"""Texts as bytes: memory-mapped splits, random training batches, fixed held-out segments.

A byte-level model needs no tokenizer: the vocabulary is the 256 byte values and a corpus is one flat array. A corpus
is a folder with ``train.bin``, ``validation.bin`` and ``test.bin``; nothing is read until it is used. Training
batches are drawn by a generator that the caller owns; held-out segments depend on nothing but the array, so every
model is judged on the same bytes.
"""

from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

ByteArray: TypeAlias = npt.NDArray[np.uint8]
SPLITS = ("train", "validation", "test")


class ByteText:
    """The three splits of one corpus, as read-only uint8 arrays [bytes] mapped from
    ``folder/{train,validation,test}.bin``.

    Raises FileNotFoundError for a missing split and ValueError for an empty one.
    """

    train: ByteArray
    validation: ByteArray
    test: ByteArray

    def __init__(self, folder: str | Path) -> None:
        """Map the splits of ``folder``."""
        for split in SPLITS:
            path = Path(folder) / f"{split}.bin"
            if not path.is_file():
                raise FileNotFoundError(
                    f"no text at {path}; a corpus is a folder with train.bin, validation.bin and test.bin"
                )
            if path.stat().st_size == 0:
                raise ValueError(f"{path} is empty; a split needs at least one byte")
            setattr(self, split, np.memmap(path, dtype=np.uint8, mode="r"))


def batch(array: ByteArray, generator: torch.Generator, batch: int, context: int) -> torch.Tensor:
    """Draw ``batch`` windows of ``context + 1`` bytes, starts uniform over the array: LongTensor [batch, context +
    1].

    The window's first ``context`` bytes are the input, its last ``context`` the targets. Raises ValueError when the
    array is shorter than one window.
    """
    last = len(array) - (context + 1)
    if last < 0:
        raise ValueError(f"a window needs {context + 1} bytes and the text has {len(array)}; take a shorter context")
    starts = torch.randint(last + 1, (batch,), generator=generator).numpy()
    return torch.from_numpy(array[starts[:, None] + np.arange(context + 1)].astype(np.int64))


def segments(array: ByteArray, length: int, count: int) -> torch.Tensor:
    """Return ``count`` evenly spread, non-overlapping pieces of ``length`` bytes: LongTensor [count, length].

    The same array, length and count give the same bytes always. Raises ValueError when they do not fit.
    """
    if count < 1 or length < 1 or count * length > len(array):
        raise ValueError(f"{count} segments of {length} bytes do not fit into a text of {len(array)} bytes")
    starts = np.arange(count) * (len(array) - length) // max(count - 1, 1)
    return torch.from_numpy(array[starts[:, None] + np.arange(length)].astype(np.int64))
