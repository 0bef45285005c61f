"""Models on disk as states, without reading them: safetensors files mapped into memory.

A safetensors file is a length, a JSON header and the tensors' bytes one after another, so a tensor is a window of the
file. Mapped, a model of any size costs address space and no memory, and a patch can be written where it belongs. The
header comes from outside: every size in it is bounded and compared with the file before it is used.

A map for reading is private: what a caller writes into such a tensor by mistake stays in this process. A map for
writing is shared with the file. Who reads holds a shared advisory lock on each file, who writes an exclusive one.
"""

import fcntl
import json
import math
import mmap
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from blake3 import blake3

from thinwire.patch.bits import UNSIGNED, Bits, State, bits_of, bytes_of, dtype_code, thread_count
from thinwire.patch.digest import DigestTree, TensorDigest
from thinwire.patch.patch import TensorPatch
from thinwire.patch.wire import MAX_DIMENSIONS

DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "U16": torch.uint16,
    "I16": torch.int16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,
}
"""The words of safetensors for what torch can hold. F4 counts half bytes in the last dimension, torch counts pairs."""

RESERVED = "__metadata__"
UNDO = ".thinwire-undo"
MAX_HEADER_BYTES = 100_000_000
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<Q")
_BLOCK_BYTES = 1 << 22
# Linux: a private map of more bytes than there is memory is refused otherwise; Python names the flag from 3.13 on
_NO_RESERVE = 0x4000 if os.uname().sysname == "Linux" else 0


@dataclass(frozen=True)
class Line:
    """A tensor in a file: its dtype and shape as torch counts them, and the place of its first byte in the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Number of bytes."""
        return self.size * self.dtype.itemsize


@dataclass(frozen=True)
class Shard:
    """One file: its header as it stands there (length and JSON), and what that says; lines in the order of bytes."""

    file: Path
    header: bytes
    metadata: dict[str, str] | None
    lines: tuple[Line, ...]


@dataclass(frozen=True, eq=False)
class Model:
    """A safetensors file, or all of a folder's in the order of their names, mapped; see ``open_model``."""

    path: Path
    shards: tuple[Shard, ...]
    writable: bool
    _places: Mapping[str, tuple[mmap.mmap, Line]]
    _maps: tuple[tuple[mmap.mmap, BinaryIO], ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(line.nbytes for shard in self.shards for line in shard.lines)

    def state(self) -> State:
        """Return all tensors: windows of the files, but copies where the data is not aligned to the dtype."""
        return {name: _window(*place) for name, place in self._places.items()}

    def row(self, name: str) -> Bits:
        """Return the bits of tensor ``name`` where they lie, aligned or not; they can be written where the model was
        opened for it.
        """
        mapped, line = self._places[name]
        row = np.frombuffer(mapped, UNSIGNED[line.dtype.itemsize], line.size, line.start if line.size else 0)
        row.flags.writeable = self.writable
        return row

    def flush(self) -> None:
        """Wait until what was written is on the disk."""
        for mapped, file in self._maps:
            mapped.flush()
            os.fsync(file.fileno())


def _window(mapped: mmap.mmap, line: Line) -> torch.Tensor:
    if not line.size:
        return torch.empty(line.shape, dtype=line.dtype)
    raw = torch.frombuffer(mapped, dtype=torch.uint8, count=line.nbytes, offset=line.start)
    if line.start % line.dtype.itemsize:
        raw = raw.clone()
    return raw.view(line.dtype).reshape(line.shape)


@contextmanager
def open_model(path: Path, *, write: bool = False) -> Iterator[Model]:
    """Map the safetensors file ``path``, or all in the folder ``path``, under advisory locks that end with the block.

    Tensors taken from the model stay valid afterwards. Raises ValueError for a harmed file, a folder without
    safetensors, a name in two files, a model that another process patches (with ``write``: or reads), and, unless
    ``write``, for one that an interrupted patch left half written.
    """
    files = shard_files(path)
    if not files:
        raise ValueError(f"{path} holds no safetensors file")
    with ExitStack() as stack:
        opened = [_open_locked(stack, file, write) for file in files]
        if not write:
            refuse_interrupted(path)
        flags = mmap.MAP_SHARED if write else mmap.MAP_PRIVATE | _NO_RESERVE
        shards, maps = [], []
        places: dict[str, tuple[mmap.mmap, Line]] = {}
        for file, handle in zip(files, opened, strict=True):
            shard = read_shard(handle, file)
            mapped = mmap.mmap(handle.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            for line in shard.lines:
                if line.name in places:
                    raise ValueError(f"tensor {line.name!r} stands in {file.name} and in a shard before it")
                places[line.name] = (mapped, line)
            shards.append(shard)
            maps.append((mapped, handle))
        yield Model(path, tuple(shards), write, places, tuple(maps))


def shard_files(path: Path) -> list[Path]:
    """Return the safetensors files of the model at ``path`` in the order of their names."""
    return sorted(path.glob("*.safetensors")) if path.is_dir() else [path]


def _open_locked(stack: ExitStack, path: Path, write: bool) -> BinaryIO:
    if not path.is_file():
        raise ValueError(f"{path} is no sound safetensors file: it is no file")
    handle = stack.enter_context(path.open("r+b" if write else "rb"))
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if write else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        doing = "in use" if write else "being patched"
        raise ValueError(f"{path} is {doing} by another process: try again when that is done") from None
    except OSError:
        if write:  # a file system without locks: readers go on
            raise
    # a map holds a duplicate of the file's handle, so closing alone would not end the lock
    stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
    if not os.path.samestat(os.fstat(handle.fileno()), path.stat()):
        raise ValueError(f"{path} was replaced while it was opened: try again")
    return handle


def read_shard(file: BinaryIO, path: Path) -> Shard:
    """Return what the header of ``file`` says, every size checked against the file; raises ValueError with ``path``."""
    size = os.fstat(file.fileno()).st_size
    try:
        start = file.read(_LENGTH.size)
        if len(start) < _LENGTH.size:
            raise ValueError(f"its {size} bytes are too few for a header")
        length = _LENGTH.unpack(start)[0]
        if length > MAX_HEADER_BYTES:
            raise ValueError(f"it declares a header of {length} bytes, at most {MAX_HEADER_BYTES} are allowed")
        if _LENGTH.size + length > size:
            raise ValueError(f"it declares a header of {length} bytes and has {size} in all")
        text = file.read(length)
        metadata, lines = parse_header(text, size)
    except ValueError as error:
        raise ValueError(f"{path} is no sound safetensors file: {error}") from None
    return Shard(path, start + text, metadata, lines)


def parse_header(text: bytes, file_bytes: int) -> tuple[dict[str, str] | None, tuple[Line, ...]]:
    """Return metadata and tensors of the header ``text`` of a file of ``file_bytes``; raises ValueError unless the
    tensors' bytes follow each other from the header to the end of the file, without holes or overlaps.
    """
    if text[:1] != b"{":
        raise ValueError("its header does not begin with '{'")
    try:
        table = json.loads(text.decode(), object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"its header is no JSON: {error}") from None
    except RecursionError:
        raise ValueError("its header is nested too deeply") from None
    metadata = table.pop(RESERVED, None)
    if metadata is not None and not (
        isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    ):
        raise ValueError("its metadata is no table of texts")
    data = _LENGTH.size + len(text)
    spans = sorted(((*_span(name, entry), name) for name, entry in table.items()), key=lambda span: span[:2])
    reached = 0
    for start, stop, name in spans:
        if start != reached:
            raise ValueError(f"tensor {name!r} begins at {start} where the one before ends at {reached}")
        reached = stop
    if data + reached != file_bytes:
        raise ValueError(f"its tensors end at byte {data + reached}, the file at {file_bytes}: cut or extended")
    return metadata, tuple(_line(name, table[name], data) for _, _, name in spans)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for name, value in pairs:
        if name in table:
            raise ValueError(f"its header names {name!r} twice")
        table[name] = value
    return table


def _refuse_constant(word: str) -> None:
    raise ValueError(f"its header holds {word}")


def _span(name: str, entry: Any) -> tuple[int, int]:
    """Return the first and last offset of a tensor, its entry checked in itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {name!r} needs dtype, shape and data_offsets and nothing else")
    kind, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(kind, str) or kind not in DTYPES:
        raise ValueError(f"tensor {name!r} has dtype {kind!r}, which torch does not hold")
    if not (_are_counts(shape) and _are_counts(offsets) and len(offsets) == 2 and len(shape) <= MAX_DIMENSIONS):
        raise ValueError(f"tensor {name!r} has a shape or data_offsets that are no sizes")
    if not name.isascii():
        _check_text(name)
    if kind == "F4" and (not shape or shape[-1] % 2):
        raise ValueError(f"tensor {name!r} is F4 with the shape {shape}: half bytes do not fill its last dimension")
    line = _line(name, entry, 0)
    if math.prod(size or 1 for size in line.shape) * line.dtype.itemsize >= 1 << 63:
        raise ValueError(f"tensor {name!r} has the shape {shape}, which is too large")
    if offsets[1] - offsets[0] != line.nbytes:
        raise ValueError(f"tensor {name!r} of {line.nbytes} bytes has data_offsets {offsets}")
    return offsets[0], offsets[1]


def _check_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"its header holds a name that is no text: {name!r}") from None


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _line(name: str, entry: dict[str, Any], data: int) -> Line:
    shape = tuple(entry["shape"])
    if entry["dtype"] == "F4":
        shape = (*shape[:-1], shape[-1] // 2)
    return Line(name, DTYPES[entry["dtype"]], shape, data + entry["data_offsets"][0])


def build_header(state: State, metadata: dict[str, str] | None) -> tuple[bytes, list[str]]:
    """Return the header of a file with ``state`` and the order of the tensors in it: wide elements first, so that all
    are aligned, then by name.

    Raises ValueError for what no safetensors file can hold: a name that it keeps for itself, a zero-dimensional F4.
    """
    if RESERVED in state:
        raise ValueError(f"no safetensors file can hold a tensor named {RESERVED!r}")
    order = sorted(state, key=lambda name: (-state[name].element_size(), name))
    table: dict[str, Any] = {} if metadata is None else {RESERVED: metadata}
    reached = 0
    for name in order:
        tensor = state[name]
        shape = list(tensor.shape)
        if tensor.dtype == torch.float4_e2m1fn_x2:
            if not shape:
                raise ValueError(f"no safetensors file can hold the zero-dimensional F4 tensor {name!r}")
            shape[-1] *= 2
        stop = reached + tensor.nbytes
        table[name] = {"dtype": _KINDS[tensor.dtype], "shape": shape, "data_offsets": [reached, stop]}
        reached = stop
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(f"the header takes {len(text)} bytes, a safetensors file has at most {MAX_HEADER_BYTES}")
    return _LENGTH.pack(len(text)) + text, order


def silent(done: int) -> None:
    """Tell nobody of progress."""


def hash_tensor(
    name: str, tensor: torch.Tensor, part: TensorPatch | None, threads: int, take: Callable[[memoryview], object]
) -> TensorDigest:
    """Return the digest of ``tensor`` with the changes of ``part``, and pass its bytes to ``take`` in blocks.

    Nothing is written to ``tensor``, and no more memory is used than for one block of 4 MiB.
    """
    hasher = blake3(max_threads=threads)
    row = bits_of(tensor)
    step = _BLOCK_BYTES // row.itemsize
    for start in range(0, row.size, step):
        block = row[start : start + step]
        if part is not None:
            first, last = np.searchsorted(part.positions, (start, start + block.size))
            if first < last:
                block = block.copy()
                block[part.positions[first:last] - start] = part.bits[first:last]
        data = bytes_of(block)
        hasher.update(data)
        take(data)
    return TensorDigest(dtype_code(tensor.dtype, name), tuple(tensor.shape), hasher.digest())


def hash_state(
    state: State,
    parts: Mapping[str, TensorPatch] | None = None,
    *,
    threads: int | None = None,
    advance: Callable[[int], object] = silent,
) -> DigestTree:
    """Return the digests of ``state`` with the changes ``parts`` by name, which are not written.

    ``advance`` is called with the number of bytes after each block.
    """
    count = thread_count(threads)
    changes = parts or {}
    return DigestTree(
        {
            name: hash_tensor(name, tensor, changes.get(name), count, lambda data: advance(len(data)))
            for name, tensor in state.items()
        }
    )


def undo_place(path: Path) -> Path:
    """Return where the undo record of the model at ``path`` stands: in the folder, or beside the file."""
    real = path.resolve()
    return real / UNDO if real.is_dir() else real.with_name(f".{real.name}{UNDO}")


def interrupted(path: Path) -> Path | None:
    """Return the model that an interrupted patch left half written if it is ``path``, a file of it, or a folder around
    it; else None.
    """
    real = path.resolve()
    files = [file.resolve() for file in shard_files(real) if file.suffix == ".safetensors"]
    candidates = {real, *files, *(file.parent for file in files)}
    return next((model for model in sorted(candidates) if undo_place(model).exists()), None)


def refuse_interrupted(path: Path) -> None:
    """Raise ValueError if an interrupted patch of the model at ``path`` is found."""
    model = interrupted(path)
    if model is not None:
        raise ValueError(f"an interrupted patch of {model} was found: put it back with `thinwire restore {model}`")


def flush_folder(path: Path) -> None:
    """Wait until the names in the folder ``path`` are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
