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
from thinwire.patch.entropy import (
    LOWEST,
    SCALE_BITS,
    STATE_BYTES,
    TOKENS,
    Counts,
    push,
    put_bits,
    token_of,
)
from thinwire.patch.kernel import kernel
from thinwire.patch.model import Model, Tables, grouped, tables_of
from thinwire.patch.patch import TensorPatch
from thinwire.patch.segments import (
    BUCKETS,
    END,
    Segment,
    SegmentInfo,
    bucket_rule,
    cut_segments,
    quads_of,
)


@kernel
def _count_block(row: Any, quads: Any, i: int, stop: int, shift: int, mask: int, seen: Any) -> None:
    """Count elements [i, stop) by bucket, in turn in four tables: one table would wait for its own last store.

    ``quads``: the same memory as ``row``, four elements of two bytes at a time.
    """
    if row.itemsize == 2:
        while i < stop and i & 3 != 0:
            seen[0, (np.int64(row[i]) >> shift) & mask] += 1
            i += 1
        for q in range(i >> 2, stop >> 2):
            quad = quads[q] >> np.uint64(shift)
            seen[0, np.int64(quad) & mask] += 1
            seen[1, np.int64(quad >> np.uint64(16)) & mask] += 1
            seen[2, np.int64(quad >> np.uint64(32)) & mask] += 1
            seen[3, np.int64(quad >> np.uint64(48)) & mask] += 1
        i = max(i, stop & ~3)
    while i < stop:
        seen[i & 3, (np.int64(row[i]) >> shift) & mask] += 1
        i += 1


@kernel
def _describe(
    row: Any, quads: Any, span: Any, positions: Any, fresh: Any, rule: Any, seen: Any, at: int, out: Any
) -> None:
    """Write bucket, gap and move of each change in ``span`` to ``out`` from ``at``; ``seen`` goes on from the piece
    before.
    """
    shift, mask, width = rule
    buckets, gaps, moves = out
    turn = np.int64(64 - 8 * width)
    i = span[0]
    for k in range(positions.size):
        place = positions[k]
        _count_block(row, quads, i, place, shift, mask, seen)
        bucket = (np.int64(row[place]) >> shift) & mask
        gaps[at] = seen[0, bucket] + seen[1, bucket] + seen[2, bucket] + seen[3, bucket]
        for lane in range(4):
            seen[lane, bucket] = 0
        step = np.int64(np.uint64(fresh[k]) - np.uint64(row[place])) << turn >> turn
        moves[at] = np.uint64((step << np.int64(1)) ^ (step >> np.int64(63))) - np.uint64(1)
        buckets[at] = bucket
        at += 1
        i = place + 1
    _count_block(row, quads, i, span[1], shift, mask, seen)


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
            quads_of(rows[piece.name]),
            (piece.start, piece.stop),
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
