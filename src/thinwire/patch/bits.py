"""Weights as bits: every tensor seen as a row of unsigned integers.

A float comparison is wrong twice for weights: it calls +0 and -0 equal, though their bits differ, and it calls a NaN
unequal to itself, though its bits are equal. Everything in this package therefore compares, moves and hashes integer
views. An element of n bytes is an unsigned integer of n bytes; bool, the float8 family, packed float4 and complex64
are no exceptions.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

State: TypeAlias = dict[str, torch.Tensor]
"""The weights of one version: name -> tensor on the CPU."""

Bits: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""One-dimensional row of unsigned integers, one for each element."""

DTYPES: tuple[torch.dtype, ...] = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
)
"""The carried dtypes. The place in this row is the dtype's code on the wire, so the row only ever grows at its end."""

UNSIGNED: dict[int, type[np.unsignedinteger[Any]]] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_INTEGER_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CODES = {dtype: code for code, dtype in enumerate(DTYPES)}
_ROTATED = {torch.float16, torch.bfloat16, torch.float32, torch.float64}

if sys.byteorder != "little":
    raise ImportError(
        "thinwire.patch reads and writes weights in little-endian order and needs a little-endian machine"
    )


def dtype_code(dtype: torch.dtype, name: str) -> int:
    """Return the wire code of ``dtype``; raises TypeError that names the tensor for a dtype that no frame carries."""
    if dtype not in _CODES:
        raise TypeError(f"tensor {name!r} has dtype {dtype}, which no frame carries; safetensors' dtypes are carried")
    return _CODES[dtype]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of ``dtype`` without ``torch.``, e.g. ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def is_rotated(dtype: torch.dtype) -> bool:
    """Whether byte planes of ``dtype`` are cut after a rotation by one bit, which brings the whole exponent into the
    top byte.
    """
    return dtype in _ROTATED


def signed_view(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of ``tensor``, on any device, as integers of the same size that share its memory."""
    return tensor.detach().view(_INTEGER_VIEW[tensor.element_size()])


def integer_view(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return the elements of ``tensor`` as integers of the same size and shape that share its memory, whatever its
    strides.
    """
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    viewed: npt.NDArray[Any] = plain.view(_INTEGER_VIEW[tensor.element_size()]).numpy()
    return viewed.view(UNSIGNED[tensor.element_size()])


def bits_of(tensor: torch.Tensor) -> Bits:
    """Return the elements of ``tensor`` in row-major order as unsigned integers, shape (numel,).

    Shares memory with a contiguous CPU tensor; any other is copied.
    """
    return integer_view(_integers(tensor).contiguous()).reshape(-1)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of ``tensor`` as integers on the CPU.

    They are integers before anything copies them: torch turns a bool's byte into 0 or 1 on the way.
    """
    return signed_view(tensor.detach().resolve_conj().resolve_neg()).cpu()


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a contiguous CPU copy of ``tensor`` whose memory holds its bits, also of a lazily conjugated or negated
    one.
    """
    return _integers(tensor).clone(memory_format=torch.contiguous_format).view(tensor.dtype)


def empty_bits(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[torch.Tensor, Bits]:
    """Return an uninitialised contiguous tensor and its bits, which share memory."""
    tensor = torch.empty(shape, dtype=dtype)
    return tensor, bits_of(tensor)


def bytes_of(bits: Bits) -> memoryview:
    """Return the little-endian bytes of a contiguous row of bits without a copy."""
    return memoryview(bits.view(np.uint8).data)


def same_memory(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    """Return a key that tied tensors (same memory, dtype, shape, strides and lazy conjugation or negation) share; None
    where there is no memory to share.
    """
    if tensor.numel() == 0:
        return None
    lazy = (tensor.is_conj(), tensor.is_neg())
    return (tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), lazy)


def tied_groups(state: State) -> tuple[tuple[str, ...], ...]:
    """Return the groups of names, each of two or more in name order, whose tensors are one tensor in memory."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name in sorted(state):
        key = same_memory(state[name])
        if key is not None:
            groups.setdefault(key, []).append(name)
    return tuple(sorted(tuple(names) for names in groups.values() if len(names) > 1))


def thread_count(threads: int | None) -> int:
    """Return ``threads``, or torch's intra-op thread count for None; raises ValueError below one."""
    if threads is None:
        return torch.get_num_threads()
    if threads < 1:
        raise ValueError(f"threads is {threads}; at least 1 is needed")
    return threads


def each(work: Any, items: Any, threads: int) -> list[Any]:
    """Return ``[work(item) for item in items]``, on up to ``threads`` threads; ``work`` must release the GIL to gain
    by it.
    """
    items = list(items)
    if threads == 1 or len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items))) as pool:
        return list(pool.map(work, items))
