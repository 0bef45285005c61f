"""The model of context coding: exact token counts by bucket, which both ends turn into the same tables."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from thinwire.patch.bits import DTYPES
from thinwire.patch.entropy import TOKENS, Counts, coding_tables, entropy_bits
from thinwire.patch.patch import FrameError
from thinwire.patch.segments import BUCKETS, bucket_rule
from thinwire.patch.wire import Packer, Unpacker

_TABLE_BITS = 14.0
"""About what a token adds to the header."""


@dataclass(frozen=True, eq=False)
class Model:
    """The token counts of one dtype's changes, which both ends turn into the same tables.

    ``active``: the buckets that have a change, ascending. ``gap_groups`` and ``move_groups``: how many active buckets
    in a row share a table. ``gap_counts`` and ``move_counts``: the counts of each table, shape (tables, 256).
    """

    dtype: torch.dtype
    active: tuple[int, ...]
    gap_groups: tuple[int, ...]
    gap_counts: Counts
    move_groups: tuple[int, ...]
    move_counts: Counts

    @property
    def changed(self) -> int:
        """Number of changes."""
        return int(self.move_counts.sum())

    def write(self, out: Packer) -> None:
        """Append the model to a header."""
        out.number(DTYPES.index(self.dtype))
        out.number(len(self.active))
        before = -1
        for bucket in self.active:
            out.number(bucket - before - 1)
            before = bucket
        for groups, counts in ((self.gap_groups, self.gap_counts), (self.move_groups, self.move_counts)):
            out.number(len(groups))
            for group, row in zip(groups, counts, strict=True):
                out.number(group)
                tokens = np.flatnonzero(row)
                out.number(len(tokens))
                before = -1
                for token in tokens:
                    out.number(int(token) - before - 1)
                    out.number(int(row[token]))
                    before = int(token)


def read_model(source: Unpacker) -> Model:
    """Return the next model of a header; raises FrameError for anything that ``Model.write`` would not write."""
    dtype = DTYPES[source.number(len(DTYPES) - 1)]
    active = _read_climb(source, bucket_rule(dtype)[1] + 1, "buckets")
    groups: list[tuple[int, ...]] = []
    counts: list[Counts] = []
    for _ in range(2):
        sizes: list[int] = []
        rows = []
        for _ in range(source.number(len(active))):
            sizes.append(source.number(BUCKETS))
            rows.append(_read_row(source))
        if sum(sizes) != len(active) or not all(sizes):
            raise FrameError(f"the header's token tables cover {sum(sizes)} of {len(active)} buckets")
        groups.append(tuple(sizes))
        counts.append(np.array(rows, dtype=np.int64).reshape(-1, TOKENS))
    return Model(dtype, active, groups[0], counts[0], groups[1], counts[1])


def _read_climb(source: Unpacker, limit: int, what: str) -> tuple[int, ...]:
    found: list[int] = []
    for _ in range(source.number(limit)):
        found.append((found[-1] if found else -1) + 1 + source.number(limit))
    if not found or found[-1] >= limit:
        raise FrameError(f"the header lists no {what}, or one beyond {limit - 1}")
    return tuple(found)


def _read_row(source: Unpacker) -> Counts:
    row = np.zeros(TOKENS, dtype=np.int64)
    token = -1
    for _ in range(source.number(TOKENS)):
        token += 1 + source.number(TOKENS)
        if token >= TOKENS:
            raise FrameError(f"the header counts a token beyond {TOKENS - 1}")
        row[token] = source.number(1 << 48)
        if row[token] == 0:
            raise FrameError("the header lists a token that never occurs")
    if token < 0:
        raise FrameError("the header has a token table without tokens")
    return row


def grouped(rows: Counts) -> tuple[tuple[int, ...], Counts]:
    """Share one table among neighbouring rows wherever that saves more in the header than it costs in the payload."""
    sizes = [1] * len(rows)
    tables = list(rows)

    def cost(row: Counts) -> float:
        return entropy_bits(row) + _TABLE_BITS * np.count_nonzero(row)

    costs = [cost(row) for row in tables]
    joined = [cost(a + b) for a, b in pairwise(tables)]
    while joined:
        savings = [costs[i] + costs[i + 1] - joined[i] for i in range(len(joined))]
        best = int(np.argmax(savings))
        if savings[best] <= 0:
            break
        tables[best : best + 2] = [tables[best] + tables[best + 1]]
        costs[best : best + 2] = [joined[best]]
        sizes[best : best + 2] = [sizes[best] + sizes[best + 1]]
        del joined[best]
        for i in (best - 1, best):
            if 0 <= i < len(joined):
                joined[i] = cost(tables[i] + tables[i + 1])
    return tuple(sizes), np.array(tables, dtype=np.int64).reshape(-1, TOKENS)


@dataclass(frozen=True, eq=False)
class Tables:
    """A model ready for use: ``index`` (2, 256) leads from kind (gap, move) and bucket to the table."""

    index: npt.NDArray[np.int64]
    active: npt.NDArray[np.int64]
    shares: npt.NDArray[np.uint32]
    starts: npt.NDArray[np.uint32]
    slots: npt.NDArray[np.uint8]


def tables_of(model: Model) -> Tables:
    """Return the coding tables of ``model``."""
    index = np.zeros((2, BUCKETS), dtype=np.int64)
    active = np.array(model.active, dtype=np.int64)
    index[0, active] = np.repeat(np.arange(len(model.gap_groups)), model.gap_groups)
    index[1, active] = len(model.gap_groups) + np.repeat(np.arange(len(model.move_groups)), model.move_groups)
    return Tables(index, active, *coding_tables(np.concatenate([model.gap_counts, model.move_counts])))
