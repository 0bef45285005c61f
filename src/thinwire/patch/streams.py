"""Byte streams in chunks: compressed and restored on several threads, each chunk of a size that both ends know
beforehand.

Sparse streams (gaps, differences) are cut every CHUNK bytes. Dense rows are cut every CHUNK elements into blocks, and
a block into one chunk for each byte plane: the exponents of neighbouring weights are alike, the low mantissa bits are
noise, and apart they cost less than mixed. A chunk that zstd can't shrink is stored as it is. In an anchor, whose rows
are long, a plane is also tried under an entropy coder alone, which suits an exponent better than zstd does.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from thinwire.patch.bits import Bits, bytes_of, each
from thinwire.patch.entropy import code_bytes, decode_bytes
from thinwire.patch.patch import FrameError
from thinwire.patch.positions import Bytes
from thinwire.patch.values import cut_planes, lay_planes
from thinwire.patch.wire import inflate

CHUNK = 1 << 20


@dataclass(frozen=True)
class Row:
    """A dense row of ``size`` elements of ``width`` bytes; ``rotated`` says how its planes are cut (see
    ``cut_planes``), ``tagged`` that a byte before each chunk names its coding.
    """

    size: int
    width: int
    rotated: bool
    planes: bool = True
    tagged: bool = False

    def starts(self) -> range:
        """Return the first element of each block."""
        return range(0, self.size, CHUNK)

    def chunk_count(self) -> int:
        """Return the number of chunks."""
        return len(self.starts()) * (self.width if self.planes else 1)

    def chunk_sizes(self) -> Iterator[int]:
        """Yield the most bytes that each chunk may take, in order."""
        for start in self.starts():
            elements = min(CHUNK, self.size - start)
            yield from [elements + self.tagged] * self.width if self.planes else [elements * self.width]


def stream_starts(size: int) -> range:
    """Return the first byte of each chunk of a stream of ``size`` bytes."""
    return range(0, size, CHUNK)


def stream_chunks(size: int) -> list[int]:
    """Return the raw sizes in bytes of the chunks of a stream of ``size`` bytes."""
    return [min(CHUNK, size - start) for start in stream_starts(size)]


def _pack(data: memoryview, level: int) -> Any:
    stored = zstandard.ZstdCompressor(level=level).compress(data)
    return stored if len(stored) < len(data) else data


def _unpack(stored: Any, size: int) -> Bytes:
    data = stored if len(stored) == size else inflate(stored, size, size, "chunk")
    return np.frombuffer(data, dtype=np.uint8)


def _pack_tagged(plane: Bytes, level: int) -> bytes:
    choices = (b"\0" + plane.tobytes(), b"\1" + bytes(_pack(bytes_of(plane), level)), b"\2" + code_bytes(plane))
    return min(choices, key=len)


def _unpack_tagged(stored: Any, size: int) -> Bytes:
    tag, data = stored[0], stored[1:]
    if tag == 0 and len(data) == size:
        return np.frombuffer(data, dtype=np.uint8)
    if tag == 1:
        return np.frombuffer(inflate(data, size, size, "chunk"), dtype=np.uint8)
    if tag == 2:
        try:
            return decode_bytes(data, size)
        except ValueError as error:
            raise FrameError(str(error)) from None
    raise FrameError(f"a chunk of {len(data)} bytes for {size} has the unknown or false tag {tag}")


def pack_streams(streams: list[Bytes], level: int, threads: int) -> list[Any]:
    """Return the stored chunks of ``streams`` in order."""
    pieces = [stream[start : start + CHUNK] for stream in streams for start in range(0, stream.size, CHUNK)]
    return each(lambda piece: _pack(bytes_of(piece), level), pieces, threads)


def unpack_streams(chunks: list[Any], sizes: list[int], threads: int) -> list[Bytes]:
    """Return the streams of ``sizes`` bytes whose chunks are given in order; raises FrameError for a harmed chunk."""
    raw = [size for stream in sizes for size in stream_chunks(stream)]
    plain = iter(each(lambda pair: _unpack(*pair), list(zip(chunks, raw, strict=True)), threads))
    streams = []
    for size in sizes:
        parts = [next(plain) for _ in stream_chunks(size)]
        streams.append(np.concatenate(parts) if parts else np.empty(0, dtype=np.uint8))
    return streams


def chunks_of_stream(chunks: list[Any], sizes: list[int], index: int) -> Iterator[Bytes]:
    """Yield the stream ``index`` of those that ``unpack_streams`` returns, chunk by chunk.

    Raises FrameError for a harmed chunk.
    """
    first = sum(len(stream_starts(size)) for size in sizes[:index])
    for place, size in enumerate(stream_chunks(sizes[index]), first):
        yield _unpack(chunks[place], size)


def pack_rows(rows: list[tuple[Row, Callable[[int, int], Bits]]], level: int, threads: int) -> list[Any]:
    """Return the stored chunks of ``rows``; each comes with a function that returns its elements from start to stop."""

    def pack_block(job: tuple[Row, Callable[[int, int], Bits], int]) -> list[Any]:
        row, elements, start = job
        bits = elements(start, min(row.size, start + CHUNK))
        if not row.planes:
            return [bytes_of(bits)]
        planes = cut_planes(bits, row.rotated)
        if row.tagged:
            return [_pack_tagged(plane, level) for plane in planes]
        return [_pack(bytes_of(plane), level) for plane in planes]

    jobs = [(row, elements, start) for row, elements in rows for start in row.starts()]
    return [chunk for chunks in each(pack_block, jobs, threads) for chunk in chunks]


def unpack_rows(chunks: list[Any], rows: list[tuple[Row, Callable[[int, Bits], Any]]], threads: int) -> list[list[Any]]:
    """Restore each block of ``rows`` and pass its start and elements on; return what was returned, by row and block.

    Raises FrameError for a harmed chunk.
    """

    def unpack_block(job: tuple[Row, Callable[[int, Bits], Any], int, list[Any]]) -> Any:
        row, take, start, stored = job
        elements = min(CHUNK, row.size - start)
        if not row.planes:
            if len(stored[0]) != elements * row.width:
                raise FrameError(f"a raw block has {len(stored[0])} bytes for {elements} elements of {row.width}")
            return take(start, np.frombuffer(stored[0], dtype=f"<u{row.width}"))
        bits = np.empty(elements, dtype=f"<u{row.width}")
        unpack = _unpack_tagged if row.tagged else _unpack
        lay_planes([unpack(chunk, elements) for chunk in stored], row.rotated, bits)
        return take(start, bits)

    jobs, at = [], 0
    for row, take in rows:
        for start in row.starts():
            step = row.width if row.planes else 1
            jobs.append((row, take, start, chunks[at : at + step]))
            at += step
    done = iter(each(unpack_block, jobs, threads))
    return [[next(done) for _ in row.starts()] for row, _ in rows]
