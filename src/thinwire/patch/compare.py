"""Where two versions differ: one pass over both at near memory speed, without a temporary as large as the weights.

After a step of training a fraction of a per cent of the BF16 weights has other bits than before (arXiv 2602.03839,
section 3), so the scan is written for long runs of equality: it folds a block of elements with XOR and OR, which
vectorises, and looks at single elements only in a block that is not all equal. Positions go to a small scratch row
and from there to the result, so that memory grows with the changes and not with the weights.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.patch.bits import Bits, each
from thinwire.patch.kernel import kernel

Positions = npt.NDArray[np.int64]

_SCRATCH = 1 << 16
_SPAN_BYTES = 1 << 23


@kernel
def _scan(a: Any, b: Any, a_words: Any, b_words: Any, start: int, stop: int, scratch: Any) -> tuple[int, int]:
    """Write positions in [start, stop) where a != b until done or the scratch is nearly full; return (count, next
    start).

    ``start`` must lie on a word; the words are the same memory as the elements, eight bytes at a time.
    """
    count = 0
    lanes = 8 // a.itemsize
    block = 8 * lanes
    room = scratch.size - block
    i = start
    w = start // lanes
    while i + block <= stop:
        if count > room:
            return count, i
        low = (a_words[w] ^ b_words[w]) | (a_words[w + 1] ^ b_words[w + 1])
        low |= (a_words[w + 2] ^ b_words[w + 2]) | (a_words[w + 3] ^ b_words[w + 3])
        high = (a_words[w + 4] ^ b_words[w + 4]) | (a_words[w + 5] ^ b_words[w + 5])
        high |= (a_words[w + 6] ^ b_words[w + 6]) | (a_words[w + 7] ^ b_words[w + 7])
        if low | high != 0:
            for j in range(i, i + block):
                scratch[count] = j
                count += a[j] != b[j]
        i += block
        w += 8
    if count > room:
        return count, i
    while i < stop:
        scratch[count] = i
        count += a[i] != b[i]
        i += 1
    return count, i


def _words(bits: Bits) -> Bits:
    return bits[: bits.size - bits.size % (8 // bits.itemsize)].view(np.uint64)


def _scan_span(a: Bits, b: Bits, start: int, stop: int) -> list[Positions]:
    scratch = np.empty(min(_SCRATCH, stop - start) + 128, dtype=np.int64)
    words = _words(a), _words(b)
    found = []
    while start < stop:
        count, start = _scan(a, b, *words, start, stop, scratch)
        if count:
            found.append(scratch[:count].copy())
    return found


def changed_positions(pairs: list[tuple[Bits, Bits]], threads: int) -> list[Positions]:
    """Return, for each pair of rows of one length and width, the ascending positions (int64) where they differ.

    Raises ValueError for a pair of unlike lengths or widths.
    """
    spans: list[list[tuple[int, int, int]]] = [[]]
    filled = 0
    for index, (a, b) in enumerate(pairs):
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

    def scan_group(group: list[tuple[int, int, int]]) -> list[tuple[int, list[Positions]]]:
        return [(index, _scan_span(*pairs[index], start, stop)) for index, start, stop in group]

    parts: list[list[Positions]] = [[] for _ in pairs]
    for group in each(scan_group, spans, threads):
        for index, found in group:
            parts[index].extend(found)
    return [np.concatenate(found) if found else np.empty(0, dtype=np.int64) for found in parts]
