"""The reader of context coding: one walk over the base that stops where an element has changed."""

from typing import Any

import numpy as np
import torch

from thinwire.patch.bits import Bits, each
from thinwire.patch.compare import Positions
from thinwire.patch.entropy import LOWEST, SCALE, SCALE_BITS, STATE_BYTES, extra_bits, take_bits, value_of
from thinwire.patch.kernel import kernel
from thinwire.patch.model import Model, Tables, tables_of
from thinwire.patch.patch import FrameError, TensorPatch
from thinwire.patch.segments import (
    BUCKETS,
    END,
    Segment,
    SegmentInfo,
    bucket_rule,
    cut_segments,
    quads_of,
    split_segments,
)

_LONGEST_GAP = 1 << 40
_NEVER = 1 << 62


@kernel
def _pull(state: Any, table: int, words: Any, at: Any, shares: Any, starts: Any, slots: Any) -> tuple[Any, Any, Any]:
    """Return the next token, the state after it and the next word's place: -1 where words are missing."""
    slot = np.int64(state & np.uint64(SCALE - 1))
    token = np.int64(slots[table, slot])
    state = np.uint64(shares[table, token]) * (state >> np.uint64(SCALE_BITS)) + np.uint64(
        slot - np.int64(starts[table, token])
    )
    if state < np.uint64(LOWEST):
        if at >= words.size:
            return token, state, -1
        state = (state << np.uint64(16)) | np.uint64(words[at])
        at += 1
    return token, state, at


@kernel
def _next_gap(token: Any, extra: Any, bit: Any) -> tuple[Any, Any]:
    """Return the gap of ``token`` and the next extra bit's place: -1 where bits are missing or the gap is too long."""
    if token == END:
        return _NEVER, bit
    more = extra_bits(token)
    if bit + more > 8 * extra.size:
        return _NEVER, -1
    gap = value_of(token, take_bits(extra, bit, more))
    if gap > np.uint64(_LONGEST_GAP):
        return _NEVER, -1
    return np.int64(gap), bit + more


@kernel
def _open(
    active: Any, index: Any, words: Any, extra: Any, shares: Any, starts: Any, slots: Any, left: Any, place: Any
) -> bool:
    """Read the first gap of each active bucket into ``left``; ``place`` is (state, word, bit, live buckets,
    changes).
    """
    state = np.uint64(place[0])
    at = np.int64(place[1])
    bit = np.int64(place[2])
    live = 0
    for bucket in active:
        token, state, at = _pull(state, index[0, bucket], words, at, shares, starts, slots)
        if at < 0:
            return False
        left[bucket], bit = _next_gap(token, extra, bit)
        if bit < 0:
            return False
        live += left[bucket] != _NEVER
    place[0] = np.int64(state)
    place[1] = at
    place[2] = bit
    place[3] = live
    return True


@kernel
def _skip(quads: Any, i: Any, stop: Any, shift: int, mask: int, left: Any) -> Any:
    """Return the first quad from ``i`` on in which a change may lie (or the last place); ``left`` counts what is
    skipped.

    A bucket with four elements or more to go has no change in a quad, whatever the quad's other elements are.
    """
    while i + 4 <= stop:
        quad = quads[i >> 2] >> np.uint64(shift)
        a = np.int64(quad) & mask
        b = np.int64(quad >> np.uint64(16)) & mask
        c = np.int64(quad >> np.uint64(32)) & mask
        d = np.int64(quad >> np.uint64(48)) & mask
        if ((left[a] - 4) | (left[b] - 4) | (left[c] - 4) | (left[d] - 4)) < 0:
            return i
        left[a] -= 1
        left[b] -= 1
        left[c] -= 1
        left[d] -= 1
        i += 4
    return i


@kernel
def _walk(
    row: Any,
    quads: Any,
    span: Any,
    rule: Any,
    index: Any,
    words: Any,
    extra: Any,
    coding: Any,
    left: Any,
    place: Any,
    positions: Any,
    fresh: Any,
) -> bool:
    """Find and restore the changes of the piece ``span``; False where the segment's data can't be as they are."""
    shares, starts, slots = coding
    shift, mask, width = rule
    limit = ~np.uint64(0) >> np.uint64(64 - 8 * width)
    state = np.uint64(place[0])
    at = np.int64(place[1])
    bit = np.int64(place[2])
    live = np.int64(place[3])
    found = np.int64(place[4])
    i = np.int64(span[0])
    stop = np.int64(span[1])
    calm = np.int64(0)  # elements before this place are looked at one by one
    while i < stop and live > 0:
        if row.itemsize == 2 and i & 3 == 0 and i >= calm:
            i = _skip(quads, i, stop, shift, mask, left)
            calm = i + 4
            if i == stop:
                break
        bucket = (np.int64(row[i]) >> shift) & mask
        rest = left[bucket]
        if rest != 0:
            left[bucket] = rest - 1
            i += 1
            continue
        if found >= positions.size:
            return False
        token, state, at = _pull(state, index[1, bucket], words, at, shares, starts, slots)
        more = extra_bits(token)
        if at < 0 or bit + more > 8 * extra.size:
            return False
        move = value_of(token, take_bits(extra, bit, more))
        bit += more
        if move >= limit:
            return False
        move += np.uint64(1)
        step = (move >> np.uint64(1)) ^ (~(move & np.uint64(1)) + np.uint64(1))
        positions[found] = i
        fresh[found] = (np.uint64(row[i]) + step) & limit
        found += 1
        token, state, at = _pull(state, index[0, bucket], words, at, shares, starts, slots)
        if at < 0:
            return False
        left[bucket], bit = _next_gap(token, extra, bit)
        if bit < 0:
            return False
        live -= left[bucket] == _NEVER
        i += 1
    place[0] = np.int64(state)
    place[1] = at
    place[2] = bit
    place[3] = live
    place[4] = found
    return True


def _unpacked(
    segment: Segment, info: SegmentInfo, data: tuple[Any, Any], tables: Tables, rows: dict[str, Bits]
) -> list[tuple[str, Positions, Bits]]:
    """Return the changes of a segment by piece; raises FrameError for data that no writer makes."""
    tokens, more = data
    words = np.frombuffer(tokens, dtype="<u2", offset=STATE_BYTES)
    extra = np.frombuffer(more, dtype=np.uint8)
    positions = np.empty(info.changed, dtype=np.int64)
    fresh = np.empty(info.changed, dtype=f"<u{segment.dtype.itemsize}")
    left = np.full(BUCKETS, _NEVER, dtype=np.int64)
    place = np.zeros(5, dtype=np.int64)
    place[0] = int.from_bytes(tokens[:STATE_BYTES], "little")
    coding = (tables.shares, tables.starts, tables.slots)
    harmed = FrameError(f"the segment that begins with tensor {segment.pieces[0].name!r} is harmed")
    if place[0] < LOWEST or not _open(tables.active, tables.index, words, extra, *coding, left, place):
        raise harmed
    rule = (*bucket_rule(segment.dtype), segment.dtype.itemsize)
    found: list[tuple[str, Positions, Bits]] = []
    for piece in segment.pieces:
        before = int(place[4])
        span = (piece.start, piece.stop)
        row = rows[piece.name]
        if not _walk(row, quads_of(row), span, rule, tables.index, words, extra, coding, left, place, positions, fresh):
            raise harmed
        after = int(place[4])
        found.append((piece.name, positions[before:after], fresh[before:after]))
    if (int(place[0]), int(place[1]), int(place[3]), int(place[4])) != (LOWEST, words.size, 0, info.changed):
        raise harmed
    if (int(place[2]) + 7) // 8 != extra.size:
        raise harmed
    return found


def decode_context(
    lines: list[tuple[str, torch.dtype, int]],
    models: tuple[Model, ...],
    infos: tuple[SegmentInfo, ...],
    payload: Any,
    rows: dict[str, Bits],
    threads: int,
) -> list[TensorPatch]:
    """Return the changes of the context ``lines``, each (name, dtype, changes), given the base's bits ``rows``.

    Raises FrameError for models or segments that do not fit the lines, and for harmed data.
    """
    segments = cut_segments([(name, dtype, rows[name].size) for name, dtype, _ in lines])
    if len(segments) != len(infos):
        raise FrameError(f"the header lists {len(infos)} segments where its tensors make {len(segments)}")
    for segment, info in zip(segments, infos, strict=True):
        if info.changed > segment.size:
            raise FrameError(f"a segment of {segment.size} elements declares {info.changed} changes")
    tables = {model.dtype: tables_of(model) for model in models}
    jobs = list(zip(segments, infos, split_segments(infos, payload), strict=True))
    pieces: dict[str, list[tuple[Positions, Bits]]] = {name: [] for name, _, _ in lines}

    def unpack(job: tuple[Segment, SegmentInfo, tuple[Any, Any]]) -> list[tuple[str, Positions, Bits]]:
        return _unpacked(*job, tables[job[0].dtype], rows)

    for found in each(unpack, jobs, threads):
        for name, positions, bits in found:
            pieces[name].append((positions, bits))
    parts = []
    for name, _, changed in lines:
        mine = pieces[name]
        positions = mine[0][0] if len(mine) == 1 else np.concatenate([piece[0] for piece in mine])
        bits = mine[0][1] if len(mine) == 1 else np.concatenate([piece[1] for piece in mine])
        if positions.size != changed:
            raise FrameError(f"tensor {name!r} changes {positions.size} elements, its header says {changed}")
        parts.append(TensorPatch(name, positions, bits))
    return parts
