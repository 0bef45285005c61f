"""The published layout, version 3.1, as the public implementation writes it (one-covenant/grail,
``sparse_codec.py``).

One zstd frame of: u32 length of a JSON header | the header | data. Each changed tensor is seen as a matrix (first
dimension, product of the rest), its changes sorted by (row, column). Rows are stored as differences, columns as the
absolute column where the row changes and as the difference within a row, each in the smallest integer type that holds
its maximum; then come the new values. Here for comparison: where the layout would cast or skip, this writer refuses
by name.
"""

import json
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zstandard

from thinwire.patch.bits import State, dtype_name
from thinwire.patch.kernel import kernel
from thinwire.patch.patch import FrameError, Patch, TensorPatch
from thinwire.patch.wire import MAX_HEADER_BYTES

VERSION = 31
_VALUES = {torch.bfloat16: np.uint16, torch.float16: np.uint16, torch.float32: np.uint32}
_ROWS = {"uint8": np.uint8, "uint16": np.uint16, "int32": np.int32}
_COLUMNS = {"uint16": np.uint16, "int32": np.int32}
_INT32_MAX = 2**31 - 1


def _check_carried(patch: Patch, base: State) -> None:
    if patch.whole or patch.removed:
        names = sorted({*patch.whole, *patch.removed})
        raise ValueError(f"the published layout can't carry added, re-typed, reshaped or removed tensors: {names}")
    for part in patch.tensors:
        tensor = base[part.name]
        if tensor.dtype not in _VALUES:
            raise ValueError(f"the published layout would cast tensor {part.name!r} of {tensor.dtype} to float32")
        if tensor.dim() == 0:
            raise ValueError(f"the published layout can't carry the zero-dimensional tensor {part.name!r}")
        if max(tensor.shape[0], math.prod(tensor.shape[1:])) > _INT32_MAX:
            raise ValueError(
                f"the published layout counts in int32, tensor {part.name!r} has shape {tuple(tensor.shape)}"
            )


def _smallest(stream: npt.NDArray[np.int64], types: dict[str, Any]) -> tuple[str, Any]:
    top = int(stream.max())
    return next((name, kind) for name, kind in types.items() if top <= np.iinfo(kind).max)


def pack_published(patch: Patch, base: State) -> bytes:
    """Return the layout's bytes before compression; raises ValueError that names what the layout can't carry."""
    _check_carried(patch, base)
    records: list[dict[str, Any]] = []
    chunks: list[bytes] = []
    offset = 0
    for part in patch.tensors:
        shape = list(base[part.name].shape)
        rows, columns = np.divmod(part.positions, math.prod(shape[1:]))
        row_steps = np.diff(rows, prepend=0)
        column_steps = columns.copy()
        column_steps[1:] -= np.where(row_steps[1:] == 0, columns[:-1], 0)
        row_name, row_kind = _smallest(row_steps, _ROWS)
        column_name, column_kind = _smallest(column_steps, _COLUMNS)
        data = [row_steps.astype(row_kind).tobytes(), column_steps.astype(column_kind).tobytes(), part.bits.tobytes()]
        indices = len(data[0]) + len(data[1])
        records.append(
            {
                "name": part.name,
                "shape": shape,
                "num_nonzero": part.positions.size,
                "value_dtype": dtype_name(base[part.name].dtype),
                "row_dtype": row_name,
                "col_dtype": column_name,
                "indices_offset": offset,
                "indices_size": indices,
                "rows_size": len(data[0]),
                "cols_size": len(data[1]),
                "values_offset": offset + indices,
                "values_size": len(data[2]),
            }
        )
        chunks += data
        offset += indices + len(data[2])
    header = json.dumps({"version": VERSION, "tensors": records}, separators=(",", ":")).encode()
    return b"".join([len(header).to_bytes(4, "little"), header, *chunks])


def encode_published(patch: Patch, base: State, *, level: int = 1) -> bytes:
    """Return the published payload: the layout under one zstd frame. Raises ValueError as ``pack_published`` does."""
    return zstandard.ZstdCompressor(level=level).compress(pack_published(patch, base))


@kernel
def _place(row_steps: Any, column_steps: Any, rows: int, columns: int, positions: Any) -> bool:
    row = np.int64(0)
    column = np.int64(0)
    for i in range(row_steps.size):
        step = np.int64(row_steps[i])
        row += step
        column = np.int64(column_steps[i]) + (column if step == 0 and i > 0 else 0)
        if step < 0 or row >= rows or column < 0 or column >= columns:
            return False
        positions[i] = row * columns + column
    return True


def decode_published(payload: Any, base: State) -> tuple[TensorPatch, ...]:
    """Return the changes in a published payload, in name order; raises FrameError for anything that does not fit
    ``base``.
    """
    most = 4 + _most_header(base) + sum(12 * tensor.numel() for tensor in base.values())
    try:
        if not 4 <= zstandard.frame_content_size(payload) <= most:
            raise FrameError("the published payload declares no size, or a larger one than its base allows")
        data = zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"the published payload can't be decompressed: {error}") from None
    return unpack_published(data, base)


def _most_header(base: State) -> int:
    """Return the most bytes that a header of the layout can take for ``base``: escaped names, keys and numbers."""
    records = sum(1024 + 6 * len(name.encode()) + 24 * tensor.dim() for name, tensor in base.items())
    return min(MAX_HEADER_BYTES, 1024 + records)


def unpack_published(plain: Any, base: State) -> tuple[TensorPatch, ...]:
    """Return the changes in the layout's bytes before compression, in name order; raises FrameError as
    ``decode_published`` does.
    """
    data = memoryview(plain)
    if len(data) < 4:
        raise FrameError(f"the published payload has {len(data)} bytes, at least 4 are needed")
    size = int.from_bytes(data[:4], "little")
    if size > min(_most_header(base), len(data) - 4):
        raise FrameError(f"the published payload declares a header of {size} bytes")
    try:
        header = json.loads(bytes(data[4 : 4 + size]))
        if header["version"] != VERSION:
            raise FrameError(f"the published payload has version {header['version']}, this reader knows {VERSION}")
        return _unpack_tensors(header["tensors"], data[4 + size :], base)
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        if isinstance(error, FrameError):
            raise
        raise FrameError(f"the published payload's header is malformed: {type(error).__name__}: {error}") from None


def _unpack_tensors(records: list[dict[str, Any]], data: memoryview, base: State) -> tuple[TensorPatch, ...]:
    """Return the tensors that ``records`` place in ``data``; raises FrameError, KeyError, TypeError or ValueError."""
    parts: list[TensorPatch] = []
    offset = 0
    for record in records:
        name, changed = record["name"], int(record["num_nonzero"])
        tensor = base.get(name)
        if tensor is None or list(tensor.shape) != record["shape"] or tensor.dtype not in _VALUES or tensor.dim() == 0:
            raise FrameError(f"the published payload names tensor {name!r} of shape {record['shape']}, unlike the base")
        value, row, column = _VALUES[tensor.dtype], _ROWS[record["row_dtype"]], _COLUMNS[record["col_dtype"]]
        sizes = [changed * np.dtype(kind).itemsize for kind in (row, column, value)]
        declared = [record[key] for key in ("rows_size", "cols_size", "values_size", "indices_offset", "values_offset")]
        if declared != [*sizes, offset, offset + sizes[0] + sizes[1]] or not 0 < changed <= tensor.numel():
            raise FrameError(f"the published payload's sizes and offsets of tensor {name!r} do not fit together")
        if dtype_name(tensor.dtype) != record["value_dtype"] or offset + sum(sizes) > len(data):
            raise FrameError(f"the published payload's values of tensor {name!r} have another dtype or are cut")
        pieces = []
        for kind, length in zip((row, column, value), sizes, strict=True):
            pieces.append(np.frombuffer(data[offset : offset + length], dtype=kind))
            offset += length
        positions = np.empty(changed, dtype=np.int64)
        columns = math.prod(tensor.shape[1:])
        if not _place(pieces[0], pieces[1], tensor.shape[0], columns, positions):
            raise FrameError(f"the published payload leads beyond tensor {name!r}")
        parts.append(TensorPatch(name, positions, pieces[2].copy()))
    if offset != len(data):
        raise FrameError(f"the published payload has {len(data) - offset} bytes too many")
    return tuple(parts)
