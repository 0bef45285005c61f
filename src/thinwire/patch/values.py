"""New values given the old ones: the zigzag difference of bit patterns, and byte planes.

A changed BF16 weight usually moves by one or two units in the last place. The bit patterns of neighbouring floats of
one sign are neighbouring integers, so the difference of the patterns is a small signed number; folded to 0, -1, 1,
-2, ... -> 0, 1, 2, 3, ... it fits a byte. Differences wrap modulo two to the width, so every pair of patterns has
one, NaN and signs included.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from thinwire.patch.bits import Bits
from thinwire.patch.entropy import bit_length
from thinwire.patch.kernel import kernel
from thinwire.patch.positions import MAX_LONG, Bytes, long_size, read_long, write_long

ESCAPE = 255


@kernel
def _zigzag(old: Any, fresh: Any, width: int) -> Any:
    shift = np.int64(64 - 8 * width)
    step = np.int64(np.uint64(fresh) - np.uint64(old)) << shift >> shift
    return np.uint64((step << np.int64(1)) ^ (step >> np.int64(63)))


@kernel
def _long_bytes(old: Any, fresh: Any) -> int:
    total = 0
    for i in range(old.size):
        folded = _zigzag(old[i], fresh[i], old.itemsize)
        if folded >= np.uint64(255):
            total += long_size(folded - np.uint64(255))
    return total


@kernel
def _split(old: Any, fresh: Any, small: Any, long: Any) -> None:
    at = 0
    for i in range(old.size):
        folded = _zigzag(old[i], fresh[i], old.itemsize)
        if folded < np.uint64(255):
            small[i] = folded
        else:
            small[i] = 255
            at = write_long(folded - np.uint64(255), long, at)


@kernel
def _join(old: Any, small: Any, long: Any, at: int, fresh: Any) -> int:
    width = old.itemsize
    limit = ~np.uint64(0) >> np.uint64(64 - 8 * width)
    for i in range(old.size):
        folded = np.uint64(small[i])
        if folded == np.uint64(255):
            more, at = read_long(long, at)
            if at < 0 or more > limit - np.uint64(255):
                return -1
            folded += more
        step = (folded >> np.uint64(1)) ^ (~(folded & np.uint64(1)) + np.uint64(1))
        fresh[i] = (np.uint64(old[i]) + step) & limit
    return at


def split_differences(old: Bits, fresh: Bits) -> tuple[Bytes, Bytes]:
    """Return the small and long streams of the zigzag differences from ``old`` to ``fresh`` (same length and width)."""
    small = np.empty(old.size, dtype=np.uint8)
    long = np.empty(_long_bytes(old, fresh), dtype=np.uint8)
    _split(old, fresh, small, long)
    return small, long


def join_differences(old: Bits, small: Bytes, long: Bytes, at: int) -> tuple[Bits, int]:
    """Return the new bits and the place after those read from ``long``, which starts at ``at``.

    Raises ValueError when ``long`` is cut or holds a number wider than the elements.
    """
    fresh = np.empty(old.size, dtype=old.dtype)
    after = _join(old, small, long, at, fresh)
    if after < 0:
        raise ValueError("a long difference is cut or wider than its element")
    return fresh, after


@kernel
def _tally_long(data: Any, sizes: Any) -> tuple[Any, Any]:
    """Count the whole numbers in ``data`` as differences by bit length; return how many there are and the place after
    the last: -1 where one is beyond 64 bits.
    """
    at = 0
    found = 0
    while at < data.size:
        more, after = read_long(data, at)
        if after < 0:
            return found, (at if data.size - at < MAX_LONG else -1)
        if more > ~np.uint64(0) - np.uint64(ESCAPE):
            return found, -1
        sizes[bit_length((more + np.uint64(ESCAPE - 1)) >> np.uint64(1))] += 1
        found += 1
        at = after
    return found, at


def tally_moves(small: Iterable[Bytes], long: Iterable[Bytes]) -> dict[int, int]:
    """Return how many zigzag differences in the streams move by how much, rounded up to a power of two.

    The streams come in pieces, of which one is held at a time. Raises ValueError when ``long`` is cut or has bytes too
    many.
    """
    counts = np.zeros(ESCAPE + 1, dtype=np.int64)
    for piece in small:
        counts += np.bincount(piece, minlength=ESCAPE + 1)
    sizes = np.zeros(65, dtype=np.int64)
    for folded, count in enumerate(counts[:ESCAPE].tolist()):
        sizes[((max(1, folded) - 1) >> 1).bit_length()] += count
    rest, found = np.empty(0, dtype=np.uint8), 0
    for piece in long:
        data = np.concatenate([rest, piece])
        numbers, after = _tally_long(data, sizes)
        if after < 0:
            raise ValueError("a long difference is wider than its element")
        rest, found = data[after:], found + numbers
    if rest.size or found != counts[ESCAPE]:
        raise ValueError("the stream of long differences is cut or has bytes too many")
    return {1 << size: count for size, count in enumerate(sizes.tolist()) if count}


@kernel
def _cut_planes(row: Any, planes: Any, rotate: bool) -> None:
    width = planes.shape[0]
    for i in range(row.size):
        value = np.uint64(row[i])
        if rotate:
            value = (value << np.uint64(1)) | (value >> np.uint64(8 * width - 1))
        for p in range(width):
            planes[p, i] = value >> np.uint64(8 * p)


@kernel
def _cut_planes_16(row: Any, low: Any, high: Any) -> None:
    for i in range(row.size):
        value = np.uint16((row[i] << 1) | (row[i] >> 15))
        low[i] = value & 255
        high[i] = value >> 8


@kernel
def _lay_planes(planes: Any, row: Any, rotate: bool) -> None:
    width = planes.shape[0]
    for i in range(row.size):
        value = np.uint64(0)
        for p in range(width):
            value |= np.uint64(planes[p, i]) << np.uint64(8 * p)
        if rotate:
            value = (value >> np.uint64(1)) | ((value & np.uint64(1)) << np.uint64(8 * width - 1))
        row[i] = value


@kernel
def _lay_planes_16(low: Any, high: Any, row: Any) -> None:
    for i in range(row.size):
        value = np.uint16(low[i]) | (np.uint16(high[i]) << 8)
        row[i] = (value >> 1) | ((value & 1) << 15)


def cut_planes(row: Bits, rotate: bool) -> list[Bytes]:
    """Return the byte planes of ``row``, least significant first; ``rotate`` turns each element left by one bit
    before.
    """
    if row.itemsize == 1:
        return [row.view(np.uint8)]
    planes = np.empty((row.itemsize, row.size), dtype=np.uint8)
    if row.itemsize == 2 and rotate:
        _cut_planes_16(row, planes[0], planes[1])
    else:
        _cut_planes(row, planes, rotate)
    return list(planes)


def lay_planes(planes: list[Bytes], rotate: bool, out: Bits) -> None:
    """Write into ``out`` the elements whose byte planes are given: the inverse of ``cut_planes``."""
    if out.itemsize == 1:
        out[:] = planes[0]
    elif out.itemsize == 2 and rotate:
        _lay_planes_16(planes[0], planes[1], out)
    else:
        _lay_planes(np.stack(planes), out, rotate)
