"""What one trainer sends in a sparse round, as bytes: positions of the sent entries and their raw FP32 values.

A payload is lossless: it carries the 32 bits of every value. It is small for two reasons. Positions are stored as gaps,
one byte each while they stay below 255, and sent entries lie some tens apart. Values are split into byte planes before
compression: the entries that a round sends are differences of FP32 weights that moved by a few multiples of the
learning rate, so their exponents agree and the low mantissa bits of most are zero; each plane has its own statistics.

Layout, little-endian. A gap is the number of unsent elements since the entry before (or since the tensor's start); it
is written as ``gap // 255`` bytes of value 255 and one byte ``gap % 255``, so a byte below 255 ends an entry.

    magic       4 bytes  b"TWO1"
    tensors     u32      tensors of the layout, in the order that all trainers share
    total       u64      elements of all tensors
    sent        u64      entries
    lengths     6 x u32  bytes of the six sections
    sections    zstd frames: table (per tensor u64 entries, u64 bytes of gaps), gaps, value bytes 0, 1, 2, 3

Every size is bounded by the receiver's own layout before anything is allocated.
"""

import itertools
import struct
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
import zstandard

MAGIC = b"TWO1"
_HEAD = struct.Struct("<4sIQQ6I")
_ESCAPE = 255
_LEVEL = 3

Entries = tuple[torch.Tensor, torch.Tensor]
"""Positions (int64, ascending, in the flattened tensor) and values (float32) of one tensor's sent entries."""


class PayloadError(ValueError):
    """Bytes from another trainer are no payload for this layout; the message says what is wrong with them."""


class Payload:
    """A checked payload: all positions lie in their tensors. Iterating yields the Entries of each tensor in order."""

    def __init__(self, table: npt.NDArray[np.uint64], gaps: npt.NDArray[np.uint8], bits: npt.NDArray[np.uint8]) -> None:
        """Hold ``table`` [tensors, 2], the ``gaps`` stream and value ``bits`` [sent, 4]; :func:`decode` checks them."""
        self._table = table
        self._gaps = gaps
        self._values = bits.view("<f4").reshape(-1)

    @property
    def sent(self) -> int:
        """Number of entries in all tensors."""
        return len(self._values)

    def __iter__(self) -> Iterator[Entries]:
        """Yield one tensor's entries after the other; only one tensor's positions are in memory at a time."""
        entry = byte = 0
        for count, length in self._table.astype(np.int64):
            positions = _positions(self._gaps[byte : byte + length])
            values = self._values[entry : entry + count].copy()
            entry += count
            byte += length
            yield torch.from_numpy(positions), torch.from_numpy(values)


def encode(entries: Sequence[Entries], sizes: Sequence[int]) -> bytes:
    """Return the payload of ``entries``, one for each tensor of ``sizes`` elements.

    Raises ValueError for entries that do not fit the sizes.
    """
    if len(entries) != len(sizes):
        raise ValueError(f"{len(entries)} tensors have entries and the layout has {len(sizes)}")
    table = np.zeros((len(sizes), 2), dtype="<u8")
    streams = []
    for row, ((positions, values), size) in enumerate(zip(entries, sizes, strict=True)):
        if positions.shape != values.shape or values.dtype != torch.float32 or positions.dtype != torch.int64:
            raise ValueError(
                f"tensor {row}: {positions.dtype} positions {tuple(positions.shape)} and {values.dtype} values "
                f"{tuple(values.shape)}; they must be int64 and float32 of one length"
            )
        stream = _gaps(positions.numpy(), size, row)
        table[row] = (len(positions), len(stream))
        streams.append(stream)
    bits = np.concatenate([v.contiguous().numpy() for _, v in entries]) if entries else np.empty(0, np.float32)
    planes = bits.astype("<f4", copy=False).view(np.uint8).reshape(-1, 4)
    raw = [table.tobytes(), b"".join(s.tobytes() for s in streams), *(planes[:, i].tobytes() for i in range(4))]
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_content_size=True)
    sections = [compressor.compress(part) for part in raw]
    head = _HEAD.pack(MAGIC, len(sizes), sum(sizes), len(bits), *map(len, sections))
    return head + b"".join(sections)


def limit(sizes: Sequence[int]) -> int:
    """Return the most bytes that a payload of tensors of ``sizes`` elements can have: about 5 an element."""
    raw = 16 * len(sizes) + 5 * sum(sizes)
    return _HEAD.size + raw + raw // 128 + 6 * 1024


def decode(data: bytes, sizes: Sequence[int]) -> Payload:
    """Check ``data`` against the layout ``sizes`` (elements of each tensor) and return its Payload.

    Raises PayloadError for bytes that :func:`encode` cannot have written for this layout.
    """
    if len(data) < _HEAD.size or len(data) > limit(sizes):
        raise PayloadError(f"a payload of {len(data)} bytes; this layout allows {_HEAD.size} to {limit(sizes)}")
    magic, tensors, total, sent, *lengths = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise PayloadError(f"a payload begins with {magic!r}; it must begin with {MAGIC!r}")
    if (tensors, total) != (len(sizes), sum(sizes)) or sent > total:
        raise PayloadError(
            f"a payload of {sent} entries in {tensors} tensors of {total} elements; the layout here has {len(sizes)} "
            f"tensors of {sum(sizes)}"
        )
    if _HEAD.size + sum(lengths) != len(data):
        raise PayloadError(f"sections of {sum(lengths)} bytes in a payload of {len(data)}; it is cut or too long")
    ends = np.cumsum([_HEAD.size, *lengths])
    sections = [data[start:end] for start, end in itertools.pairwise(ends)]
    table = np.frombuffer(_inflate(sections[0], 16 * tensors, "table"), dtype="<u8").reshape(-1, 2)
    _check_table(table, sizes, sent)
    gaps = np.frombuffer(_inflate(sections[1], int(table[:, 1].sum()), "gaps"), dtype=np.uint8)
    _check_gaps(table, gaps, sizes)
    bits = np.empty((sent, 4), dtype=np.uint8)
    for plane in range(4):
        section = _inflate(sections[2 + plane], sent, f"value byte {plane}")
        bits[:, plane] = np.frombuffer(section, dtype=np.uint8)
    return Payload(table, gaps, bits)


def _gaps(positions: npt.NDArray[np.int64], size: int, row: int) -> npt.NDArray[np.uint8]:
    if not len(positions):
        return np.empty(0, np.uint8)
    gaps = np.diff(positions, prepend=-1) - 1
    if gaps.min() < 0 or positions[-1] >= size:
        raise ValueError(f"tensor {row}: positions must ascend from 0 to at most {size - 1}")
    last = np.cumsum(gaps // _ESCAPE + 1) - 1
    stream = np.full(int(last[-1]) + 1, _ESCAPE, dtype=np.uint8)
    stream[last] = gaps % _ESCAPE
    return stream


def _positions(stream: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    last = np.flatnonzero(stream != _ESCAPE)
    positions: npt.NDArray[np.int64] = np.cumsum(stream, dtype=np.int64)[last] + np.arange(len(last))
    return positions


def _check_table(table: npt.NDArray[np.uint64], sizes: Sequence[int], sent: int) -> None:
    bound = np.asarray(sizes, dtype=np.uint64)[:, None]
    over = np.flatnonzero((table > bound).any(axis=1))  # a byte of gaps covers at least one element
    if len(over):
        row = int(over[0])
        raise PayloadError(f"tensor {row}: {table[row, 0]} entries in {table[row, 1]} bytes for {sizes[row]} elements")
    if int(table[:, 0].sum()) != sent:
        raise PayloadError(f"the table counts {int(table[:, 0].sum())} entries and the header {sent}")


def _check_gaps(table: npt.NDArray[np.uint64], gaps: npt.NDArray[np.uint8], sizes: Sequence[int]) -> None:
    start = 0
    for row, (count, length) in enumerate(table.astype(np.int64)):
        stream = gaps[start : start + length]
        start += length
        if np.count_nonzero(stream != _ESCAPE) != count or (length and stream[-1] == _ESCAPE):
            raise PayloadError(f"tensor {row}: its gaps do not end {count} entries")
        if count and int(stream.sum(dtype=np.int64)) + int(count) > sizes[row]:
            raise PayloadError(f"tensor {row}: an entry lies beyond its {sizes[row]} elements")


def _inflate(section: bytes, expected: int, what: str) -> bytes:
    try:
        size = zstandard.get_frame_parameters(section).content_size
        if size != expected:
            raise PayloadError(f"{what}: {size} bytes where {expected} belong")
        return zstandard.ZstdDecompressor().decompress(
            section, max_output_size=max(expected, 1), allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise PayloadError(f"{what}: not a zstd frame: {error}") from None
