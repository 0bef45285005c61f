"""Where two versions differ: one pass over both at near memory speed, without a temporary as large as the weights.

After a step of training a fraction of a per cent of the BF16 weights has other bits than before (arXiv 2602.03839,
section 3), so the scan is written for long runs of equality: it folds a block of elements with XOR and OR, which
vectorises, and looks at single elements only in a block that is not all equal. What is wanted of a change is taken
while its block is at hand: its position, its new bits, and what it adds to the running digest. They go to small scratch
rows and from there to the result, so that memory grows with the changes and not with the weights.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.patch.bits import Bits, each
from thinwire.patch.kernel import kernel
from thinwire.patch.running import Lanes, sum_moves, term

Positions = npt.NDArray[np.int64]

_SCRATCH = 1 << 16
_SPAN_BYTES = 1 << 23


@kernel
def _scan(
    a: Any, b: Any, a_words: Any, b_words: Any, start: int, stop: int, key: Any, scratch: Any, fresh: Any
) -> tuple[int, int, Any, Any]:
    """Write positions in [start, stop) where a != b, and b there, until done or the scratch is nearly full.

    Returns (count, next start, both lanes that the changes add to the running digest). ``start`` must lie on a word;
    the words are the same memory as the elements, eight bytes at a time.
    """
    low, high = key
    left = np.uint64(0)
    right = np.uint64(0)
    count = 0
    lanes = 8 // a.itemsize
    block = 8 * lanes
    room = scratch.size - block
    i = start
    w = start // lanes
    while i + block <= stop:
        if count > room:
            return count, i, left, right
        some = (a_words[w] ^ b_words[w]) | (a_words[w + 1] ^ b_words[w + 1])
        some |= (a_words[w + 2] ^ b_words[w + 2]) | (a_words[w + 3] ^ b_words[w + 3])
        more = (a_words[w + 4] ^ b_words[w + 4]) | (a_words[w + 5] ^ b_words[w + 5])
        more |= (a_words[w + 6] ^ b_words[w + 6]) | (a_words[w + 7] ^ b_words[w + 7])
        if some | more != 0:
            for j in range(i, i + block):
                scratch[count] = j
                fresh[count] = b[j]
                count += a[j] != b[j]
            for v in range(w, w + 8):
                if a_words[v] != b_words[v]:
                    old = term(a_words[v], np.uint64(v), low, high)
                    moved = term(b_words[v], np.uint64(v), low, high)
                    left += moved[0] - old[0]
                    right += moved[1] - old[1]
        i += block
        w += 8
    if count > room:
        return count, i, left, right
    first = count
    while i < stop:
        scratch[count] = i
        fresh[count] = b[i]
        count += a[i] != b[i]
        i += 1
    last = sum_moves(a, scratch[first:count], fresh[first:count], low, high)
    return count, i, left + last[0], right + last[1]


@dataclass(frozen=True, eq=False)
class Changes:
    """What differs between two rows: ascending positions, the new bits there, and what they add to the running
    digest.
    """

    positions: Positions
    bits: Bits
    lanes: Lanes


def _words(bits: Bits) -> Bits:
    return bits[: bits.size - bits.size % (8 // bits.itemsize)].view(np.uint64)


def _scan_span(a: Bits, b: Bits, key: Lanes, start: int, stop: int) -> list[Changes]:
    size = min(_SCRATCH, stop - start) + 128
    scratch, fresh = np.empty(size, dtype=np.int64), np.empty(size, dtype=b.dtype)
    words, keys = (_words(a), _words(b)), (np.uint64(key[0]), np.uint64(key[1]))
    found = []
    while start < stop:
        count, start, left, right = _scan(a, b, *words, start, stop, keys, scratch, fresh)
        if count:
            found.append(Changes(scratch[:count].copy(), fresh[:count].copy(), (int(left), int(right))))
    return found


def changed_elements(pairs: list[tuple[Bits, Bits, Lanes]], threads: int) -> list[Changes]:
    """Return the changes from the first to the second row of each pair, which have one length and width.

    The third of a pair is the key of its tensor's running digest. Raises ValueError for unlike rows.
    """
    spans: list[list[tuple[int, int, int]]] = [[]]
    filled = 0
    for index, (a, b, _) in enumerate(pairs):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"rows {a.shape} {a.dtype} and {b.shape} {b.dtype} can't be compared element by element")
        step = max(1, _SPAN_BYTES // a.itemsize)
        for start in range(0, a.size, step):
            stop = min(a.size, start + step)
            spans[-1].append((index, start, stop))
            filled += (stop - start) * a.itemsize
            if filled >= _SPAN_BYTES:
                spans.append([])
                filled = 0

    def scan_group(group: list[tuple[int, int, int]]) -> list[tuple[int, list[Changes]]]:
        return [(index, _scan_span(*pairs[index], start, stop)) for index, start, stop in group]

    parts: list[list[Changes]] = [[] for _ in pairs]
    for group in each(scan_group, spans, threads):
        for index, found in group:
            parts[index].extend(found)
    return [_joined(found, b.dtype) for found, (_, b, _) in zip(parts, pairs, strict=True)]


def _joined(found: list[Changes], kind: Any) -> Changes:
    if not found:
        return Changes(np.empty(0, dtype=np.int64), np.empty(0, dtype=kind), (0, 0))
    if len(found) == 1:
        return found[0]
    lanes = (sum(part.lanes[0] for part in found), sum(part.lanes[1] for part in found))
    return Changes(
        np.concatenate([part.positions for part in found]), np.concatenate([part.bits for part in found]), lanes
    )
