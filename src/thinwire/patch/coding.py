"""Sparse streams of many tensors, and the estimate that chooses between sparse and dense."""

from dataclasses import dataclass, field

import numpy as np

from thinwire.patch.bits import Bits
from thinwire.patch.compare import Positions
from thinwire.patch.header import SPARSE, Header, TensorInfo, absolute_lines
from thinwire.patch.patch import FrameError, TensorPatch
from thinwire.patch.positions import Bytes, join_positions, split_positions
from thinwire.patch.values import cut_planes, join_differences, lay_planes, split_differences

_SAMPLE = 1 << 14
_GLANCE = 1 << 8
_NOTHING = np.empty(0, dtype=np.uint8)


def _entropy(symbols: Bytes) -> float:
    """Return the order-0 entropy of ``symbols`` in bits a symbol, at least the 0.05 that a byte costs in practice."""
    counts = np.bincount(symbols, minlength=256)
    shares = counts[counts > 0] / max(1, symbols.size)
    return max(0.05, float(-(shares * np.log2(shares)).sum()))


def choose_coding(part: TensorPatch, old: Bits, size: int) -> str:
    """Return "relative", "absolute" or "dense" for ``part`` of a tensor of ``size`` elements, ``old`` being its bits
    before.

    Few changes that move little are relative without more ado. Otherwise the costs are entropies of the bytes that
    would be written for the first 16384 changes at most: deterministic, and cheap beside the coding itself.
    """
    sparse = 8 * part.positions.size < size
    first = slice(0, _GLANCE if sparse else _SAMPLE)
    positions, old, fresh = part.positions[first], old[first], part.bits[first]
    small, long = split_differences(old, fresh)
    if sparse and 4 * long.size < small.size:
        return "relative"
    low, high, far = split_positions(positions)
    gaps = positions.size * (_entropy(low) + _entropy(high)) + 8 * far.size
    costs = {
        "relative": gaps + small.size * _entropy(small) + 8 * long.size,
        "absolute": gaps + positions.size * sum(_entropy(plane) for plane in cut_planes(fresh, False)),
    }
    if not sparse:
        span = int(positions[-1]) + 1
        row = np.zeros(span, dtype=old.dtype)
        row[positions] = old ^ fresh
        costs["dense"] = span * sum(_entropy(plane) for plane in cut_planes(row, False))
    return min(costs, key=lambda coding: costs[coding])


@dataclass
class SparseStreams:
    """Collects the streams of the sparse tensors of a frame, in name order."""

    gaps: list[tuple[Bytes, Bytes, Bytes]] = field(default_factory=list)
    differences: list[tuple[Bytes, Bytes]] = field(default_factory=list)
    planes: dict[int, list[list[Bytes]]] = field(default_factory=lambda: {1: [], 2: [], 4: [], 8: []})

    def add(self, part: TensorPatch, old: Bits, coding: str) -> None:
        """Append ``part``, whose bits before the change are ``old``."""
        self.gaps.append(split_positions(part.positions))
        if coding == "relative":
            self.differences.append(split_differences(old, part.bits))
        else:
            self.planes[part.bits.itemsize].append(cut_planes(part.bits, False))

    def streams(self) -> list[Bytes]:
        """Return the streams in the order of ``Header.stream_sizes``."""
        joined = [_joined([triple[i] for triple in self.gaps]) for i in range(3)]
        joined += [_joined([pair[i] for pair in self.differences]) for i in range(2)]
        for width, planes in self.planes.items():
            joined += [_joined([plane[i] for plane in planes]) for i in range(width)]
        return joined


def _joined(parts: list[Bytes]) -> Bytes:
    return np.concatenate(parts) if parts else _NOTHING


def read_sparse(header: Header, streams: list[Bytes], rows: dict[str, Bits]) -> list[TensorPatch]:
    """Return the sparse tensors of ``header`` from its plain ``streams``; ``rows`` are the base's bits by name.

    Raises FrameError for positions beyond a tensor and for streams that are cut or left over.
    """
    low, high, far, small, long = streams[:5]
    fresh = _absolute_bits(header, streams[5:])
    parts = []
    at = at_far = at_small = at_long = 0
    for line in header.tensors:
        if line.coding not in SPARSE:
            continue
        row = rows[line.name]
        try:
            positions, at_far = join_positions(
                low[at : at + line.changed], high[at : at + line.changed], far, at_far, row.size
            )
            at += line.changed
            bits = fresh.get(line.name)
            if bits is None:
                differences = small[at_small : at_small + line.changed]
                bits, at_long = join_differences(row[positions], differences, long, at_long)
                at_small += line.changed
        except ValueError as error:
            raise FrameError(f"tensor {line.name!r}: {error}") from None
        parts.append(TensorPatch(line.name, positions, bits))
    if at_far != far.size or at_long != long.size:
        raise FrameError("the streams of long gaps or differences have bytes too many")
    return parts


def _absolute_bits(header: Header, planes: list[Bytes]) -> dict[str, Bits]:
    fresh: dict[str, Bits] = {}
    first = 0
    for width in (1, 2, 4, 8):
        at = 0
        for line in absolute_lines(header.tensors, width):
            bits = np.empty(line.changed, dtype=f"<u{width}")
            lay_planes([plane[at : at + line.changed] for plane in planes[first : first + width]], False, bits)
            fresh[line.name] = bits
            at += line.changed
        first += width
    return fresh


def changes_of_block(row: Bits, start: int, folded: Bits) -> tuple[Positions, Bits]:
    """Return the positions and new bits of a dense block: ``folded`` is XORed on ``row`` from ``start``."""
    inside = np.flatnonzero(folded)
    return inside + start, row[start + inside] ^ folded[inside]


def fold_block(part: TensorPatch, row: Bits, start: int, stop: int) -> Bits:
    """Return the XOR of old and new elements from ``start`` to ``stop``."""
    first, last = np.searchsorted(part.positions, (start, stop))
    positions = part.positions[first:last]
    folded = np.zeros(stop - start, dtype=row.dtype)
    folded[positions - start] = row[positions] ^ part.bits[first:last]
    return folded


def dense_lines(header: Header) -> list[TensorInfo]:
    """Return the dense lines of ``header``."""
    return [line for line in header.tensors if line.coding == "dense"]
