"""Coding given the base: what the receiver knows is not sent.

The receiver of a patch holds the base, so it knows each weight's exponent and with it the spacing of the values around
it. Adam moves all weights by about as much (arXiv 2602.03839, section 3), so a weight changes with a probability that
doubles with each step down in exponent, or, without a master copy, in a few exponents almost always and elsewhere
almost never. So the elements are sorted into buckets by the exponent of their base, and each bucket is a row of its
own: a change is coded as the number of unchanged elements of its bucket since the bucket's change before, and as the
difference of bit patterns given the bucket. Nothing else is sent, and no element moves: both ends walk over the base
once, with one counter for each bucket.

Tensors are walked in the order of dtype and name, in segments of at most 2^24 elements that are coded apart, so that
several threads share the work. The counts of all tokens, by bucket, go into the header: they are the model of the
entropy coder and, exact as they are, a histogram of the moves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from thinwire.patch.bits import Bits, each
from thinwire.patch.compare import Positions
from thinwire.patch.entropy import (
    LOWEST,
    SCALE,
    SCALE_BITS,
    STATE_BYTES,
    TOKENS,
    Counts,
    extra_bits,
    push,
    put_bits,
    take_bits,
    token_of,
    value_of,
)
from thinwire.patch.kernel import kernel
from thinwire.patch.model import Model, Tables, grouped, tables_of
from thinwire.patch.patch import FrameError, TensorPatch
from thinwire.patch.segments import (
    BUCKETS,
    END,
    Segment,
    SegmentInfo,
    bucket_rule,
    cut_segments,
    split_segments,
)

_LONGEST_GAP = 1 << 40
_NEVER = 1 << 62


@kernel
def _count_block(row: Any, i: int, stop: int, shift: int, mask: int, seen: Any) -> None:
    """Count elements [i, stop) by bucket, in turn in four tables: one table would wait for its own last store."""
    while i + 4 <= stop:
        seen[0, (np.int64(row[i]) >> shift) & mask] += 1
        seen[1, (np.int64(row[i + 1]) >> shift) & mask] += 1
        seen[2, (np.int64(row[i + 2]) >> shift) & mask] += 1
        seen[3, (np.int64(row[i + 3]) >> shift) & mask] += 1
        i += 4
    while i < stop:
        seen[0, (np.int64(row[i]) >> shift) & mask] += 1
        i += 1


@kernel
def _describe(
    row: Any, start: int, stop: int, positions: Any, fresh: Any, rule: Any, seen: Any, at: int, out: Any
) -> None:
    """Write bucket, gap and move of each change in [start, stop) to ``out`` from ``at``; ``seen`` goes on from the
    piece before.
    """
    shift, mask, width = rule
    buckets, gaps, moves = out
    turn = np.int64(64 - 8 * width)
    i = start
    for k in range(positions.size):
        place = positions[k]
        _count_block(row, i, place, shift, mask, seen)
        bucket = (np.int64(row[place]) >> shift) & mask
        gaps[at] = seen[0, bucket] + seen[1, bucket] + seen[2, bucket] + seen[3, bucket]
        for lane in range(4):
            seen[lane, bucket] = 0
        step = np.int64(np.uint64(fresh[k]) - np.uint64(row[place])) << turn >> turn
        moves[at] = np.uint64((step << np.int64(1)) ^ (step >> np.int64(63))) - np.uint64(1)
        buckets[at] = bucket
        at += 1
        i = place + 1
    _count_block(row, i, stop, shift, mask, seen)


@kernel
def _chain(buckets: Any, gaps: Any, moves: Any, first: Any, gap_counts: Any, move_counts: Any) -> int:
    """Turn each change's gap into that of the next change in its bucket (-1: none), ``first`` keeping the first ones.

    Counts all tokens by bucket, those of ``first`` apart, and returns the number of extra bits.
    """
    extra = 0
    for k in range(buckets.size - 1, -1, -1):
        bucket = buckets[k]
        ahead = first[bucket]
        first[bucket] = gaps[k]
        gaps[k] = ahead
        token = END
        if ahead >= 0:
            token, more = token_of(np.uint64(ahead))
            extra += more
        gap_counts[bucket, token] += 1
        token, more = token_of(moves[k])
        move_counts[bucket, token] += 1
        extra += more
    return extra


@kernel
def _pack_extra(buckets: Any, gaps: Any, moves: Any, first: Any, active: Any, out: Any) -> None:
    at = 0
    for bucket in active:
        if first[bucket] >= 0:
            at = put_bits(np.uint64(first[bucket]), token_of(np.uint64(first[bucket]))[1], out, at)
    for k in range(buckets.size):
        at = put_bits(moves[k], token_of(moves[k])[1], out, at)
        if gaps[k] >= 0:
            at = put_bits(np.uint64(gaps[k]), token_of(np.uint64(gaps[k]))[1], out, at)


@kernel
def _pack_tokens(
    buckets: Any, gaps: Any, moves: Any, first: Any, active: Any, tables: Any, shares: Any, starts: Any, words: Any
) -> tuple[Any, int]:
    """Code all tokens, the last first; return the last state and the number of ``words`` left unused at the front."""
    state = np.uint64(LOWEST)
    at = words.size - 1
    for k in range(buckets.size - 1, -1, -1):
        bucket = buckets[k]
        token = END if gaps[k] < 0 else token_of(np.uint64(gaps[k]))[0]
        table = tables[0, bucket]
        state, at = push(state, starts[table, token], shares[table, token], words, at)
        token = token_of(moves[k])[0]
        table = tables[1, bucket]
        state, at = push(state, starts[table, token], shares[table, token], words, at)
    for j in range(active.size - 1, -1, -1):
        bucket = active[j]
        token = END if first[bucket] < 0 else token_of(np.uint64(first[bucket]))[0]
        table = tables[0, bucket]
        state, at = push(state, starts[table, token], shares[table, token], words, at)
    return state, at + 1


@dataclass
class _Described:
    """The changes of one segment in order, and the gaps to the first ones by bucket."""

    segment: Segment
    buckets: npt.NDArray[np.uint8]
    gaps: npt.NDArray[np.int32]
    moves: npt.NDArray[Any]
    first: npt.NDArray[np.int64]
    gap_counts: Counts
    move_counts: Counts
    extra: int


def _described(segment: Segment, rows: dict[str, Bits], parts: dict[str, TensorPatch]) -> _Described:
    shift, mask = bucket_rule(segment.dtype)
    spans = []
    for piece in segment.pieces:
        positions = parts[piece.name].positions
        spans.append(tuple(np.searchsorted(positions, (piece.start, piece.stop)).tolist()))
    changed = sum(last - first for first, last in spans)
    width = segment.dtype.itemsize
    buckets = np.empty(changed, dtype=np.uint8)
    gaps = np.empty(changed, dtype=np.int32)
    moves = np.empty(changed, dtype=f"<u{width}")
    seen = np.zeros((4, BUCKETS), dtype=np.int64)
    at = 0
    for piece, (low, high) in zip(segment.pieces, spans, strict=True):
        part = parts[piece.name]
        _describe(
            rows[piece.name],
            piece.start,
            piece.stop,
            part.positions[low:high],
            part.bits[low:high],
            (shift, mask, width),
            seen,
            at,
            (buckets, gaps, moves),
        )
        at += high - low
    first = np.full(BUCKETS, -1, dtype=np.int64)
    gap_counts, move_counts = np.zeros((2, BUCKETS, TOKENS), dtype=np.int64)
    extra = _chain(buckets, gaps, moves, first, gap_counts, move_counts)
    return _Described(segment, buckets, gaps, moves, first, gap_counts, move_counts, extra)


def _modelled(found: list[_Described], dtype: torch.dtype) -> Model:
    mine = [part for part in found if part.segment.dtype == dtype]
    gap_counts = sum((part.gap_counts for part in mine), np.zeros((BUCKETS, TOKENS), dtype=np.int64))
    move_counts = sum((part.move_counts for part in mine), np.zeros((BUCKETS, TOKENS), dtype=np.int64))
    active = np.flatnonzero(move_counts.sum(axis=1))
    for part in mine:
        for bucket in active:
            gap = int(part.first[bucket])
            gap_counts[bucket, END if gap < 0 else token_of(np.uint64(gap))[0]] += 1
            part.extra += 0 if gap < 0 else token_of(np.uint64(gap))[1]
    gap_groups, gap_tables = grouped(gap_counts[active])
    move_groups, move_tables = grouped(move_counts[active])
    return Model(dtype, tuple(active.tolist()), gap_groups, gap_tables, move_groups, move_tables)


@dataclass(frozen=True)
class Coded:
    """The changes of a frame's context tensors: models by dtype code, segments, and the payload's chunks."""

    models: tuple[Model, ...]
    segments: tuple[SegmentInfo, ...]
    chunks: tuple[bytes, ...]


def encode_context(parts: dict[str, TensorPatch], rows: dict[str, Bits], base_dtypes: Any, threads: int) -> Coded:
    """Code ``parts`` by name, given the base's bits ``rows`` and dtypes by name."""
    segments = cut_segments([(name, base_dtypes[name], rows[name].size) for name in parts])
    found = each(lambda segment: _described(segment, rows, parts), segments, threads)
    dtypes = list(dict.fromkeys(segment.dtype for segment in segments))
    models = {dtype: _modelled(found, dtype) for dtype in dtypes}
    tables = {dtype: tables_of(model) for dtype, model in models.items()}
    coded = each(lambda part: _packed(part, tables[part.segment.dtype]), found, threads)
    infos = tuple(
        SegmentInfo(part.buckets.size, len(tokens), len(extra))
        for part, (tokens, extra) in zip(found, coded, strict=True)
    )
    return Coded(tuple(models.values()), infos, tuple(chunk for pair in coded for chunk in pair if chunk))


def _packed(part: _Described, tables: Tables) -> tuple[bytes, bytes]:
    symbols = 2 * part.buckets.size + tables.active.size
    words = np.empty(symbols * SCALE_BITS // 16 + 2, dtype="<u2")
    columns = (part.buckets, part.gaps, part.moves, part.first, tables.active)
    state, unused = _pack_tokens(*columns, tables.index, tables.shares, tables.starts, words)
    extra = np.zeros((part.extra + 7) // 8, dtype=np.uint8)
    _pack_extra(*columns, extra)
    return int(state).to_bytes(STATE_BYTES, "little") + words[unused:].tobytes(), extra.tobytes()


@kernel
def _pull(state: Any, table: int, words: Any, at: int, shares: Any, starts: Any, slots: Any) -> tuple[int, Any, int]:
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
def _next_gap(token: int, extra: Any, bit: int) -> tuple[int, int]:
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
def _walk(
    row: Any,
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
    while i < stop and live > 0:
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
        if not _walk(rows[piece.name], span, rule, tables.index, words, extra, coding, left, place, positions, fresh):
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
    for found in each(lambda job: _unpacked(*job, tables[job[0].dtype], rows), jobs, threads):
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
