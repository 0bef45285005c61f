"""A digest that follows the changes: the running digest.

The state digest needs every byte of a version. The running digest of a version is a sum over all its 8-byte words, each
mixed with its place and a key of its tensor, so a patch carries it on: take the old terms of the changed words away,
add the new ones. It depends on the version alone and not on the way there: whoever starts from an anchor and whoever
followed every patch hold the same value.

It finds faults (a wrong base, a lost patch, a flipped bit among the changed words) at the price of the changes. It is
no proof against an adversary, who could find other words with the same sum; the state digest is, and frames bind both.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3

from thinwire.patch.bits import Bits, State, bits_of, copy_of, dtype_code, each, same_memory, thread_count
from thinwire.patch.kernel import kernel

if TYPE_CHECKING:
    from thinwire.patch.patch import Patch

_CONTEXT = b"thinwire running digest 1\0"
_SPAN_WORDS = 1 << 20
_LANE = (1 << 64) - 1
Lanes = tuple[int, int]
"""Two sums modulo 2^64."""


@kernel
def term(word: Any, place: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return both lanes of the term of ``word`` (uint64) at ``place`` (uint64) under the key (``low``, ``high``)."""
    a = (word ^ low) * np.uint64(0xFF51AFD7ED558CCD)
    a = (a ^ (a >> np.uint64(32))) + place * np.uint64(0x9E3779B97F4A7C15)
    a *= np.uint64(0xC4CEB9FE1A85EC53)
    a = (a ^ (a >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    b = (word + high) * np.uint64(0xBF58476D1CE4E5B9)
    b = (b ^ (b >> np.uint64(31))) + place * np.uint64(0xD6E8FEB86659FD93)
    b *= np.uint64(0xA0761D6478BD642F)
    b = (b ^ (b >> np.uint64(30))) * np.uint64(0xE7037ED1A0B428DB)
    return a ^ (a >> np.uint64(32)), b ^ (b >> np.uint64(32))


@kernel
def _sum_words(words: Any, first: int, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the sums of the terms of ``words``, whose places begin at ``first``."""
    left = np.uint64(0)
    right = np.uint64(0)
    for i in range(words.size):
        a, b = term(words[i], np.uint64(first + i), low, high)
        left += a
        right += b
    return left, right


@kernel
def _word_at(row: Any, word: int) -> Any:
    """Return the 8-byte word of ``row`` at ``word``, the missing elements of the last one zero."""
    lanes = 8 // row.itemsize
    value = np.uint64(0)
    for lane in range(min(lanes, row.size - word * lanes)):
        value |= np.uint64(row[word * lanes + lane]) << np.uint64(8 * row.itemsize * lane)
    return value


@kernel
def sum_moves(row: Any, positions: Any, fresh: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the sums of the terms that arise less those that vanish when ``fresh`` is written at ``positions``."""
    lanes = 8 // row.itemsize
    size = 8 * row.itemsize
    left = np.uint64(0)
    right = np.uint64(0)
    k = 0
    while k < positions.size:
        word = positions[k] // lanes
        old = _word_at(row, word)
        moved = old
        while k < positions.size and positions[k] // lanes == word:
            turn = np.uint64(size * (positions[k] - word * lanes))
            moved ^= (np.uint64(row[positions[k]]) ^ np.uint64(fresh[k])) << turn
            k += 1
        a, b = term(moved, np.uint64(word), low, high)
        left += a
        right += b
        a, b = term(old, np.uint64(word), low, high)
        left -= a
        right -= b
    return left, right


@lru_cache(maxsize=1 << 14)
def _seed(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Return the key of a tensor's words, two integers, and the term that stands for the tensor itself, two more."""
    label = name.encode()
    hasher = blake3(_CONTEXT)
    hasher.update(struct.pack("<IBI", len(label), dtype_code(dtype, name), len(shape)))
    hasher.update(label + struct.pack(f"<{len(shape)}Q", *shape))
    low, high, left, right = struct.unpack("<4Q", hasher.digest())
    return low, high, left, right


def key_of(name: str, tensor: torch.Tensor) -> Lanes:
    """Return the key of the words of ``tensor`` under ``name``."""
    return _seed(name, tensor.dtype, tuple(tensor.shape))[:2]


def _sum_tensor(name: str, tensor: torch.Tensor, threads: int) -> Lanes:
    low, high, left, right = _seed(name, tensor.dtype, tuple(tensor.shape))
    if tensor.numel() == 0:
        return left, right
    row = bits_of(tensor)
    lanes = 8 // row.itemsize
    full = row.size // lanes
    words = row[: full * lanes].view(np.uint64)
    key = np.uint64(low), np.uint64(high)
    starts = range(0, full, _SPAN_WORDS)
    sums = each(lambda start: _sum_words(words[start : start + _SPAN_WORDS], start, *key), starts, threads)
    if full * lanes < row.size:
        sums.append(term(np.uint64(_word_at(row, full)), np.uint64(full), *key))
    return (left + sum(int(a) for a, _ in sums)) & _LANE, (right + sum(int(b) for _, b in sums)) & _LANE


def _sum_changes(name: str, tensor: torch.Tensor, positions: Any, fresh: Bits) -> Lanes:
    low, high, _, _ = _seed(name, tensor.dtype, tuple(tensor.shape))
    left, right = sum_moves(bits_of(tensor), positions, fresh, np.uint64(low), np.uint64(high))
    return int(left), int(right)


@dataclass(frozen=True)
class RunningDigest:
    """The running digest of one version: two sums modulo 2^64."""

    lanes: Lanes

    @property
    def hex(self) -> str:
        """The digest as 32 hexadecimal digits."""
        return struct.pack("<2Q", *self.lanes).hex()

    @classmethod
    def parse(cls, text: str) -> "RunningDigest":
        """Return the digest that ``hex`` wrote as ``text``; raises ValueError for anything else."""
        if len(text) != 32:
            raise ValueError(f"a running digest has 32 hexadecimal digits, {text!r} has {len(text)}")
        left, right = struct.unpack("<2Q", bytes.fromhex(text))
        return cls((left, right))

    def _moved(self, added: list[Lanes], taken: list[Lanes]) -> "RunningDigest":
        left = self.lanes[0] + sum(a for a, _ in added) - sum(a for a, _ in taken)
        right = self.lanes[1] + sum(b for _, b in added) - sum(b for _, b in taken)
        return RunningDigest((left & _LANE, right & _LANE))

    def after(
        self, base: State, patch: "Patch", *, threads: int | None = None, moved: Mapping[str, Lanes] | None = None
    ) -> "RunningDigest":
        """Return the digest of the target of ``patch``, given that this one is ``base``'s; ``base`` is only read.

        The changed words of patched tensors are read, and all of those that are carried whole, removed, or tied anew.
        ``moved``: by name, what the changes of a tensor add, where that is known.
        """
        known = moved or {}
        count = thread_count(threads)
        partner = {name: group[0] for group in patch.ties for name in group[1:]}
        parts = {part.name: part for part in patch.tensors}
        sparse, taken, added = list(parts.items()), list(patch.removed), []
        for name, tensor in patch.whole.items():
            taken += [name] if name in base else []
            added.append((name, tensor))
        for name, leader in partner.items():
            held = leader not in patch.whole and name in base and leader in base
            if held and same_memory(base[name]) == same_memory(base[leader]) is not None:
                sparse += [(name, parts[leader])] if leader in parts else []
                continue
            taken += [name] if name in base else []
            added.append((name, _target(base, patch, leader)))
        unknown = [(name, part) for name, part in sparse if name not in known]
        moves = each(lambda job: _sum_changes(job[0], base[job[0]], job[1].positions, job[1].bits), unknown, count)
        moves += [known[name] for name, _ in sparse if name in known]
        arisen = [_sum_tensor(name, tensor, count) for name, tensor in added]
        return self._moved(moves + arisen, [_sum_tensor(name, base[name], count) for name in taken])


def _target(base: State, patch: "Patch", name: str) -> torch.Tensor:
    """Return the tensor ``name`` as the target of ``patch`` has it."""
    if name in patch.whole:
        return patch.whole[name]
    tensor = copy_of(base[name])
    for part in patch.tensors:
        if part.name == name:
            bits_of(tensor)[part.positions] = part.bits
    return tensor


def running_digest(state: State, *, threads: int | None = None) -> RunningDigest:
    """Return the running digest of ``state`` from all its bytes.

    Raises TypeError for a dtype that no frame carries.
    """
    count = thread_count(threads)
    return RunningDigest((0, 0))._moved([_sum_tensor(name, state[name], count) for name in sorted(state)], [])
