"""Positions as gaps, gaps as three byte streams.

Ascending positions are stored as the number of unchanged elements before each change. At the densities of fine-tuning
a gap is a few hundred, so its low byte is nearly random and its high byte nearly always small: written to two
streams, each is close to what an entropy coder can do, and neither blurs the other. A gap of 65280 or more has 255 in
the high stream and the rest of it in a third stream, seven bits a byte, least significant first, the top bit set on
all but the last.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.patch.compare import Positions
from thinwire.patch.kernel import kernel

Bytes = npt.NDArray[np.uint8]
MAX_LONG = 10
"""Most bytes of a 64-bit number at seven bits a byte."""


@kernel
def long_size(value: int) -> int:
    """Return the bytes of ``value`` >= 0 at seven bits a byte."""
    size = 1
    while value >= 128:
        value >>= 7
        size += 1
    return size


@kernel
def write_long(value: Any, out: Any, at: int) -> int:
    """Write ``value`` at seven bits a byte into ``out`` from ``at``; return the place after it."""
    value = np.uint64(value)
    while value >= np.uint64(128):
        out[at] = (value & np.uint64(127)) | np.uint64(128)
        value >>= np.uint64(7)
        at += 1
    out[at] = value
    return at + 1


@kernel
def read_long(data: Any, at: int) -> tuple[Any, int]:
    """Return the number at ``at`` as uint64 and the place after it: -1 when it is cut or beyond 64 bits."""
    value = np.uint64(0)
    for shift in range(0, 70, 7):
        if at >= data.size:
            return value, -1
        byte = np.uint64(data[at])
        at += 1
        if shift == 63 and byte > np.uint64(1):
            return value, -1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            return value, at
    return value, -1


@kernel
def _long_bytes(positions: Any) -> int:
    total = 0
    before = -1
    for i in range(positions.size):
        gap = positions[i] - before - 1
        before = positions[i]
        if gap >= 65280:
            total += long_size((gap >> 8) - 255)
    return total


@kernel
def _split(positions: Any, low: Any, high: Any, long: Any) -> None:
    before = -1
    at = 0
    for i in range(positions.size):
        gap = positions[i] - before - 1
        before = positions[i]
        low[i] = gap & 255
        if gap < 65280:
            high[i] = gap >> 8
        else:
            high[i] = 255
            at = write_long((gap >> 8) - 255, long, at)


@kernel
def _join(low: Any, high: Any, long: Any, at: int, size: int, positions: Any) -> int:
    before = -1
    for i in range(low.size):
        top = np.int64(high[i])
        if top == 255:
            more, at = read_long(long, at)
            if at < 0 or more > np.uint64(1 << 54):
                return -1
            top += np.int64(more)
        before += int((top << 8) + np.int64(low[i]) + 1)
        if before >= size:
            return -1
        positions[i] = before
    return at


def split_positions(positions: Positions) -> tuple[Bytes, Bytes, Bytes]:
    """Return the low, high and long streams of ascending ``positions``."""
    low = np.empty(positions.size, dtype=np.uint8)
    high = np.empty(positions.size, dtype=np.uint8)
    long = np.empty(_long_bytes(positions), dtype=np.uint8)
    _split(positions, low, high, long)
    return low, high, long


def join_positions(low: Bytes, high: Bytes, long: Bytes, at: int, size: int) -> tuple[Positions, int]:
    """Return the positions within ``size`` elements and the place after those read from ``long``, which starts at
    ``at``.

    Raises ValueError when the streams lead beyond ``size`` or ``long`` is cut.
    """
    positions = np.empty(low.size, dtype=np.int64)
    after = _join(low, high, long, at, size, positions)
    if after < 0:
        raise ValueError(f"positions lead beyond the {size} elements of the tensor, or a long gap is cut")
    return positions, after
