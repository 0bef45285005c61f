"""What context coding walks over: buckets of elements by the exponent of their base, and segments of tensors."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from thinwire.patch.bits import DTYPES, Bits
from thinwire.patch.entropy import TOKENS

SEGMENT = 1 << 24
BUCKETS = 256
END = TOKENS - 1
"""The gap token that says that its bucket has no further change in the segment; no gap is that long."""
_EXPONENTS: dict[torch.dtype, tuple[int, int]] = {
    torch.float16: (10, 31),
    torch.bfloat16: (7, 255),
    torch.float32: (23, 255),
    torch.float64: (55, 255),
    torch.float8_e4m3fn: (3, 15),
    torch.float8_e5m2: (2, 31),
    torch.float8_e4m3fnuz: (3, 15),
    torch.float8_e5m2fnuz: (2, 31),
}


def bucket_rule(dtype: torch.dtype) -> tuple[int, int]:
    """Return (shift, mask): the bucket of an element with bits b is (b >> shift) & mask, its exponent.

    Of float64 the upper eight bits of the exponent; elements without an exponent are all in bucket 0.
    """
    return _EXPONENTS.get(dtype, (0, 0))


def quads_of(row: Bits) -> Bits:
    """Return the same memory in words of four elements, without the last elements that fill none; only for elements of
    two bytes, else empty.
    """
    return row[: row.size - row.size % 4 if row.itemsize == 2 else 0].view(np.uint64)


@dataclass(frozen=True)
class Piece:
    """Elements ``start`` to ``stop`` of the changed tensor ``name``."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Segment:
    """Pieces of one dtype that are coded together, at most SEGMENT elements."""

    dtype: torch.dtype
    pieces: tuple[Piece, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return sum(piece.stop - piece.start for piece in self.pieces)


def cut_segments(tensors: list[tuple[str, torch.dtype, int]]) -> list[Segment]:
    """Return the segments of ``tensors``, each (name, dtype, elements), in the order of dtype code and name."""
    segments: list[Segment] = []
    for dtype in DTYPES:
        pieces: list[Piece] = []
        room = SEGMENT
        for name, _, size in sorted(line for line in tensors if line[1] == dtype):
            start = 0
            while start < size:
                stop = min(size, start + room)
                pieces.append(Piece(name, start, stop))
                room -= stop - start
                start = stop
                if room == 0:
                    segments.append(Segment(dtype, tuple(pieces)))
                    pieces, room = [], SEGMENT
        if pieces:
            segments.append(Segment(dtype, tuple(pieces)))
    return segments


@dataclass(frozen=True)
class SegmentInfo:
    """What the header says of one segment: its changes, and the bytes of its tokens and of its extra bits."""

    changed: int
    token_bytes: int
    extra_bytes: int


def split_segments(infos: tuple[SegmentInfo, ...], payload: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the tokens and the extra bits of each segment; the caller has checked that the sizes add up."""
    at = 0
    for info in infos:
        middle = at + info.token_bytes
        yield payload[at:middle], payload[middle : middle + info.extra_bytes]
        at = middle + info.extra_bytes
