"""The header of a frame: what it carries, tensor by tensor, and the stored size of each chunk of its payload."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from thinwire.patch.bits import DTYPES, State, dtype_code, is_rotated
from thinwire.patch.entropy import STATE_BYTES
from thinwire.patch.model import Model, read_model
from thinwire.patch.patch import FrameError
from thinwire.patch.positions import MAX_LONG
from thinwire.patch.segments import SEGMENT, SegmentInfo
from thinwire.patch.streams import Row, stream_chunks, stream_starts
from thinwire.patch.wire import MAX_DIMENSIONS, Packer, Unpacker

CODINGS = ("published", "absolute", "relative", "dense", "context")
"""How one tensor's changes are coded; the place in this row is the code on the wire."""
SPARSE = ("absolute", "relative")
MAX_ELEMENTS = 1 << 60
Item = TypeVar("Item")


@dataclass(frozen=True)
class TensorInfo:
    """A line of a frame's table: name, dtype, shape (None where only the base knows it), coding, and elements
    carried.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...] | None
    coding: str
    changed: int


@dataclass(frozen=True)
class Header:
    """The fields of a header in the order of the wire.

    ``total``: elements in the base. ``tensors``: changed tensors in name order. ``whole``: tensors carried whole in
    name order. ``removed``: names. ``ties``: groups of names, the carried name first. ``long_sizes``: bytes of the
    streams of long gaps and long differences. ``chunks``: stored bytes of each chunk. ``models`` and ``segments``: of
    the context tensors, whose bytes follow the chunks.
    """

    total: int
    tensors: tuple[TensorInfo, ...]
    whole: tuple[TensorInfo, ...]
    removed: tuple[str, ...]
    ties: tuple[tuple[str, ...], ...]
    long_sizes: tuple[int, int] = (0, 0)
    chunks: tuple[int, ...] = ()
    models: tuple[Model, ...] = ()
    segments: tuple[SegmentInfo, ...] = ()

    def stream_sizes(self) -> list[int]:
        """Return the raw bytes of each sparse stream in order.

        Gaps low, high, long; differences small, long; then the planes of new bits of the absolute tensors, for
        elements of 1, 2, 4 and 8 bytes, least significant first.
        """
        sparse = sum(line.changed for line in self.tensors if line.coding in SPARSE)
        relative = sum(line.changed for line in self.tensors if line.coding == "relative")
        sizes = [sparse, sparse, self.long_sizes[0], relative, self.long_sizes[1]]
        for width in (1, 2, 4, 8):
            sizes += [sum(line.changed for line in absolute_lines(self.tensors, width))] * width
        return sizes

    def write(self) -> bytes:
        """Return the header's bytes; raises ValueError for more dimensions or longer names than a frame carries."""
        out = Packer()
        out.number(self.total)
        out.number(len(self.tensors))
        for line in self.tensors:
            out.text(line.name)
            out.number(dtype_code(line.dtype, line.name))
            out.number(CODINGS.index(line.coding))
            out.number(line.changed)
        out.number(len(self.whole))
        for line in self.whole:
            shape = line.shape or ()
            if len(shape) > MAX_DIMENSIONS:
                raise ValueError(
                    f"tensor {line.name!r} has {len(shape)} dimensions, at most {MAX_DIMENSIONS} are carried"
                )
            out.text(line.name)
            out.number(dtype_code(line.dtype, line.name))
            out.number(len(shape))
            for size in shape:
                out.number(size)
        out.texts(self.removed)
        out.number(len(self.ties))
        for group in self.ties:
            out.texts(group)
        for size in (*self.long_sizes, len(self.chunks), *self.chunks):
            out.number(size)
        out.number(len(self.models))
        for model in self.models:
            model.write(out)
        out.number(len(self.segments))
        for segment in self.segments:
            for size in (segment.changed, segment.token_bytes, segment.extra_bytes):
                out.number(size)
        return bytes(out.data)


def absolute_lines(tensors: tuple[TensorInfo, ...], width: int) -> list[TensorInfo]:
    """Return the absolute lines of ``tensors`` whose elements have ``width`` bytes."""
    return [line for line in tensors if line.coding == "absolute" and line.dtype.itemsize == width]


def row_of(line: TensorInfo) -> Row:
    """Return the dense row in which a whole tensor is carried."""
    return Row(line.changed, line.dtype.itemsize, is_rotated(line.dtype), line.coding != "raw", line.coding == "coded")


def _read_dtype(source: Unpacker) -> torch.dtype:
    return DTYPES[source.number(len(DTYPES) - 1)]


def _read_whole(source: Unpacker, coding: str) -> TensorInfo:
    name, dtype = source.text(), _read_dtype(source)
    shape = tuple(source.number(MAX_ELEMENTS) for _ in range(source.number(MAX_DIMENSIONS)))
    elements = math.prod(shape)
    # an empty tensor's other dimensions count too: no library has strides beyond 63 bits
    if elements > MAX_ELEMENTS or math.prod(size or 1 for size in shape) * dtype.itemsize >= 1 << 63:
        raise FrameError(f"tensor {name!r} declares {elements} elements in the shape {shape}")
    return TensorInfo(name, dtype, shape, coding, elements)


def _read_changed(source: Unpacker) -> TensorInfo:
    name, dtype = source.text(), _read_dtype(source)
    return TensorInfo(name, dtype, None, CODINGS[source.number(len(CODINGS) - 1)], source.number(MAX_ELEMENTS))


def _read_ascending(source: Unpacker, read: Callable[[], Item], name_of: Callable[[Item], str]) -> tuple[Item, ...]:
    """Return a list of items in name order; a repetition, which compresses to nothing, ends it at once."""
    items: list[Item] = []
    for _ in range(source.count()):
        items.append(read())
        if len(items) > 1 and name_of(items[-2]) >= name_of(items[-1]):
            raise FrameError("the header's names are not in order, or one stands twice")
    return tuple(items)


def _read_ties(source: Unpacker) -> tuple[tuple[str, ...], ...]:
    groups: list[tuple[str, ...]] = []
    seen: set[str] = set()
    for _ in range(source.count()):
        group = []
        for _ in range(source.count()):
            group.append(source.text())
            if group[-1] in seen:
                raise FrameError(f"tied group {len(groups)} repeats the name {group[-1][:40]!r}")
            seen.add(group[-1])
        if len(group) < 2:
            raise FrameError(f"tied group {group} has fewer than two names")
        groups.append(tuple(group))
    return tuple(groups)


def read_header(data: bytes, encoding: str, payload_bytes: int, version: int) -> Header:
    """Return the header in ``data`` of a frame of ``encoding``; raises FrameError for anything that ``write`` would
    not write.

    ``payload_bytes`` bounds the number of chunks and of segments: none is empty. A header of format ``version`` 1
    ends with the chunks.
    """
    source = Unpacker(data)
    total = source.number(MAX_ELEMENTS)
    tensors = _read_ascending(source, lambda: _read_changed(source), lambda line: line.name)
    whole_coding = encoding if encoding in ("raw", "coded") else "planes"
    whole = _read_ascending(source, lambda: _read_whole(source, whole_coding), lambda line: line.name)
    removed = _read_ascending(source, source.text, str)
    ties = _read_ties(source)
    long_sizes = source.number(MAX_ELEMENTS), source.number(MAX_ELEMENTS)
    chunk_count = source.count()
    if chunk_count > payload_bytes:
        raise FrameError(f"the header lists {chunk_count} chunks for a payload of {payload_bytes} bytes")
    chunks = tuple(source.number() for _ in range(chunk_count))
    models: tuple[Model, ...] = ()
    segments: tuple[SegmentInfo, ...] = ()
    if version > 1:
        models = tuple(read_model(source) for _ in range(source.number(len(DTYPES))))
        segment_count = source.count()
        if segment_count * STATE_BYTES > payload_bytes:
            raise FrameError(f"the header lists {segment_count} segments for a payload of {payload_bytes} bytes")
        segments = tuple(_read_segment(source) for _ in range(segment_count))
    source.end()
    header = Header(total, tensors, whole, removed, ties, long_sizes, chunks, models, segments)
    _check_header(header, encoding)
    _check_models(header)
    return header


def _read_segment(source: Unpacker) -> SegmentInfo:
    info = SegmentInfo(source.number(SEGMENT), source.number(MAX_ELEMENTS), source.number(MAX_ELEMENTS))
    if info.token_bytes < STATE_BYTES or info.token_bytes % 2:
        raise FrameError(f"the header declares a segment with {info.token_bytes} bytes of tokens")
    return info


def _check_header(header: Header, encoding: str) -> None:
    for line in header.tensors:
        if (line.coding == "published") != (encoding == "published") or line.changed == 0:
            raise FrameError(
                f"tensor {line.name!r} is {line.coding} with {line.changed} changes in a frame that is {encoding}"
            )
    sparse = sum(line.changed for line in header.tensors if line.coding in SPARSE)
    relative = sum(line.changed for line in header.tensors if line.coding == "relative")
    if header.long_sizes[0] > MAX_LONG * sparse or header.long_sizes[1] > MAX_LONG * relative:
        raise FrameError(f"the header declares long streams of {header.long_sizes} bytes for {sparse} changes")


def _check_models(header: Header) -> None:
    """Raise FrameError unless the models count the changes of the context tensors, dtype by dtype."""
    changed: dict[torch.dtype, int] = {}
    for line in header.tensors:
        if line.coding == "context":
            changed[line.dtype] = changed.get(line.dtype, 0) + line.changed
    counted = [(model.dtype, model.changed) for model in header.models]
    if counted != sorted(changed.items(), key=lambda pair: DTYPES.index(pair[0])):
        raise FrameError(f"the header's models count {counted} changes, its tensors are {list(changed.items())}")
    if sum(segment.changed for segment in header.segments) != sum(changed.values()):
        raise FrameError("the header's segments have other changes than its tensors")


def check_fits(header: Header, base: State) -> None:
    """Raise FrameError unless each changed tensor of ``header`` is in ``base`` with its dtype and as many elements."""
    for line in header.tensors:
        if line.name not in base:
            raise FrameError(f"patched tensor {line.name!r} is not in the base")
        tensor = base[line.name]
        if tensor.dtype != line.dtype or tensor.numel() < line.changed:
            raise FrameError(
                f"tensor {line.name!r} has {tensor.numel()} elements of {tensor.dtype}, "
                f"its patch {line.changed} of {line.dtype}"
            )


def split_payload(header: Header, payload: Any, dense: list[Row]) -> tuple[list[Any], list[Any], Any]:
    """Return the stored chunks of the sparse streams and of the ``dense`` rows, and the bytes of the segments.

    Raises FrameError where sizes don't match.
    """
    sizes = header.stream_sizes()
    sparse = sum(len(stream_starts(size)) for size in sizes)
    expected = sparse + sum(row.chunk_count() for row in dense)
    if expected != len(header.chunks):
        raise FrameError(f"the header lists {len(header.chunks)} chunks where its tensors need {expected}")
    raw = [size for stream in sizes for size in stream_chunks(stream)]
    for row in dense:
        raw.extend(row.chunk_sizes())
    if any(stored > size or stored == 0 for stored, size in zip(header.chunks, raw, strict=True)):
        raise FrameError("the header lists a chunk that is empty or larger than its plain bytes")
    taken = sum(header.chunks) + sum(info.token_bytes + info.extra_bytes for info in header.segments)
    if taken != len(payload):
        raise FrameError(f"the chunks and segments take {taken} bytes, the payload has {len(payload)}")
    pieces, at = [], 0
    for stored in header.chunks:
        pieces.append(payload[at : at + stored])
        at += stored
    return pieces[:sparse], pieces[sparse:], payload[at:]
