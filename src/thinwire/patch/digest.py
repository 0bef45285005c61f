"""One value that binds a whole version: the state digest.

A digest over raw bytes alone (as in the public implementation) is blind to a renamed, reshaped or re-typed tensor.
Here each tensor's bytes have a BLAKE3 of their own, and the state digest is the BLAKE3 of the records (name, dtype,
shape, tensor digest) in name order. So any two versions with one digest have the same names, shapes, dtypes and bits;
and where one tensor changed, only that tensor is hashed again.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3

from thinwire.patch.bits import State, bits_of, bytes_of, dtype_code, each, same_memory, thread_count

_CONTEXT = b"thinwire state digest 1\0"
_LARGE_BYTES = 1 << 26


@dataclass(frozen=True)
class TensorDigest:
    """What one tensor adds to the state digest: dtype code, shape, and 32 bytes of BLAKE3 over its row-major bytes."""

    dtype: int
    shape: tuple[int, ...]
    value: bytes


@dataclass(frozen=True)
class DigestTree:
    """The digests of the tensors of one version by name, and their root, the state digest."""

    tensors: Mapping[str, TensorDigest]

    @property
    def root(self) -> str:
        """The state digest: 64 hexadecimal digits."""
        hasher = blake3(_CONTEXT)
        for name in sorted(self.tensors):
            leaf = self.tensors[name]
            label = name.encode()
            hasher.update(struct.pack("<IBI", len(label), leaf.dtype, len(leaf.shape)))
            hasher.update(label + struct.pack(f"<{len(leaf.shape)}Q", *leaf.shape) + leaf.value)
        return hasher.hexdigest()

    def updated(self, state: State, changed: Iterable[str], *, threads: int | None = None) -> "DigestTree":
        """Return the tree of ``state``, given that of its names only ``changed`` (and names unknown here) differ from
        before.
        """
        stale = set(changed)
        kept = {name: leaf for name, leaf in self.tensors.items() if name in state and name not in stale}
        rest = {name: tensor for name, tensor in state.items() if name not in kept}
        return DigestTree({**kept, **digest_tree(rest, threads=threads).tensors})


def _tensor_value(tensor: torch.Tensor, threads: int) -> bytes:
    hasher = blake3(max_threads=threads)
    if tensor.numel():
        hasher.update(bytes_of(bits_of(tensor)))
    return hasher.digest()


def digest_tree(state: State, *, threads: int | None = None) -> DigestTree:
    """Hash every tensor of ``state`` on ``threads`` threads (torch's count for None); tied tensors are read once.

    Raises TypeError for a dtype that no frame carries.
    """
    count = thread_count(threads)
    codes = {name: dtype_code(tensor.dtype, name) for name, tensor in state.items()}
    leaders: dict[object, str] = {}
    leader_of = {name: leaders.setdefault(same_memory(tensor) or name, name) for name, tensor in state.items()}
    names = sorted(set(leader_of.values()), key=lambda name: -state[name].nbytes)
    large = [name for name in names if state[name].nbytes >= _LARGE_BYTES]
    values = {name: _tensor_value(state[name], count) for name in large}
    small = names[len(large) :]
    values.update(zip(small, each(lambda name: _tensor_value(state[name], 1), small, count), strict=True))
    return DigestTree(
        {name: TensorDigest(codes[name], tuple(state[name].shape), values[leader_of[name]]) for name in state}
    )


def state_digest(state: State, *, threads: int | None = None) -> str:
    """Return the state digest of ``state``: 64 hexadecimal digits that bind name, shape, dtype and bytes of every
    tensor.

    Raises TypeError for a dtype that no frame carries.
    """
    return digest_tree(state, threads=threads).root
