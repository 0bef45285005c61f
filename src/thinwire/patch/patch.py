"""What changed between two versions, exactly: ``diff`` finds it, ``apply`` writes it.

A patch holds, for each tensor that kept its dtype and shape, the positions whose bits differ and the bits that stand
there afterwards (arXiv 2602.03839, algorithm 1: values, not arithmetic differences, so that no rounding ever
happens). A tensor that was added, reshaped or re-typed is carried whole, a removed one by name; tensors that share
memory are patched once and share memory afterwards. A patch names its base and its target by state digest: on another
base it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from thinwire.patch.bits import (
    Bits,
    State,
    bits_of,
    copy_of,
    integer_view,
    same_memory,
    signed_view,
    thread_count,
    tied_groups,
)
from thinwire.patch.compare import Positions, changed_elements
from thinwire.patch.digest import DigestTree, digest_tree, state_digest
from thinwire.patch.kernel import kernel
from thinwire.patch.running import RunningDigest, key_of, running_digest


class FrameError(ValueError):
    """A frame or a patch is refused; the message says what is wrong and where. Nothing was written."""


@dataclass(frozen=True, eq=False)
class TensorPatch:
    """The changes of one tensor: ``bits[i]`` stands at row-major ``positions[i]`` afterwards; positions ascend."""

    name: str
    positions: Positions
    bits: Bits


@dataclass(frozen=True, eq=False)
class Patch:
    """The way from one version to the next.

    ``tensors``: changed tensors of unchanged dtype and shape, in name order, tied ones under their first name only.
    ``whole``: added, reshaped or re-typed tensors by name. ``removed``: names that the target lacks. ``ties``: groups
    of names that are one tensor in memory in the target, the name that carries its changes first. ``total``: elements
    in the base, tied ones counted once. ``base_running`` and ``target_running``: running digests, "" where not known.
    """

    base_digest: str
    target_digest: str
    total: int
    tensors: tuple[TensorPatch, ...] = ()
    whole: Mapping[str, torch.Tensor] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()
    base_running: str = ""
    target_running: str = ""

    @property
    def changed(self) -> int:
        """Number of elements that the patch carries."""
        return sum(part.positions.size for part in self.tensors) + sum(t.numel() for t in self.whole.values())


def distinct_elements(state: State) -> int:
    """Return the number of elements of ``state``, tied tensors counted once."""
    seen = {same_memory(tensor) or name: tensor.numel() for name, tensor in state.items()}
    return sum(seen.values())


def diff(
    base: State,
    target: State,
    *,
    threads: int | None = None,
    base_tree: DigestTree | None = None,
    target_tree: DigestTree | None = None,
    base_running: RunningDigest | None = None,
) -> Patch:
    """Return the patch that turns ``base`` into ``target``, bit for bit.

    ``threads``: None takes torch's count. ``base_tree``, ``target_tree`` and ``base_running``: digests that the caller
    already holds for these very bits; without them the versions are hashed. Raises TypeError for a dtype that no frame
    carries.
    """
    count = thread_count(threads)
    base_tree = base_tree or digest_tree(base, threads=count)
    target_tree = target_tree or digest_tree(target, threads=count)
    base_running = base_running or running_digest(base, threads=count)
    ties = tuple(_leader_first(group, base, target) for group in tied_groups(target))
    followers = {name for group in ties for name in group[1:]}
    leaders = sorted(set(target) - followers)
    pairs = {
        name: (bits_of(base[name]), bits_of(target[name]), key_of(name, base[name]))
        for name in leaders
        if _alike(name, base, target)
    }
    whole = {name: target[name].detach() for name in leaders if name not in pairs}
    found = dict(zip(pairs, changed_elements(list(pairs.values()), count), strict=True))
    tensors = tuple(
        TensorPatch(name, changes.positions, changes.bits) for name, changes in found.items() if changes.positions.size
    )
    removed = tuple(sorted(set(base) - set(target)))
    patch = Patch(base_tree.root, target_tree.root, distinct_elements(base), tensors, whole, removed, ties)
    moved = {name: changes.lanes for name, changes in found.items()}
    target_running = base_running.after(base, patch, threads=count, moved=moved)
    return replace(patch, base_running=base_running.hex, target_running=target_running.hex)


def _alike(name: str, base: State, target: State) -> bool:
    return name in base and base[name].dtype == target[name].dtype and base[name].shape == target[name].shape


def _leader_first(group: tuple[str, ...], base: State, target: State) -> tuple[str, ...]:
    leader = next((name for name in group if _alike(name, base, target)), group[0])
    return (leader, *(name for name in group if name != leader))


@kernel
def _first_misplaced(positions: Any, size: int) -> int:
    """Return the index of the first position that does not ascend or lies outside [0, size); -1 if there is none."""
    before = -1
    for i in range(positions.size):
        if positions[i] <= before or positions[i] >= size:
            return i
        before = positions[i]
    return -1


@kernel
def _put_row(row: Any, positions: Any, bits: Any) -> None:
    for i in range(positions.size):
        row[positions[i]] = bits[i]


def check_patch(base: State, patch: Patch) -> None:
    """Raise FrameError unless every part of ``patch`` fits ``base``: names, widths, positions, ties."""
    names = [part.name for part in patch.tensors]
    for part in patch.tensors:
        if part.name not in base or part.name in patch.whole or part.name in patch.removed:
            raise FrameError(
                f"patched tensor {part.name!r} is missing from the base, or carried whole or removed as well"
            )
        tensor = base[part.name]
        if part.bits.dtype.itemsize != tensor.element_size() or part.bits.dtype.kind != "u":
            raise FrameError(f"tensor {part.name!r} holds {tensor.dtype}, its patch brings {part.bits.dtype}")
        if part.positions.shape != part.bits.shape or part.positions.ndim != 1 or part.positions.dtype != np.int64:
            raise FrameError(f"tensor {part.name!r}: {part.positions.size} positions for {part.bits.size} values")
        misplaced = _first_misplaced(part.positions, tensor.numel())
        if misplaced >= 0:
            raise FrameError(
                f"tensor {part.name!r}: position {part.positions[misplaced]} does not ascend "
                f"within {tensor.numel()} elements"
            )
    if names != sorted(set(names)):
        raise FrameError("the patched tensors are not in name order, or one is named twice")
    missing = [name for name in patch.removed if name not in base]
    if missing or set(patch.removed) & set(patch.whole):
        raise FrameError(f"removed tensors {missing or list(patch.removed)} are not in the base, or are carried whole")
    _check_ties(base, patch)


def _check_ties(base: State, patch: Patch) -> None:
    seen: set[str] = set()
    carried = {part.name for part in patch.tensors} | set(patch.whole)
    for group in patch.ties:
        leader = group[0] if group else ""
        if len(set(group)) < 2 or len(set(group)) < len(group) or seen & set(group):
            raise FrameError(f"tied group {group} repeats a name or has fewer than two")
        if leader in patch.removed or (leader not in base and leader not in patch.whole):
            raise FrameError(f"tied tensor {leader!r} is neither in the base nor carried whole")
        if carried & set(group[1:]) or set(patch.removed) & set(group):
            raise FrameError(f"tied group {group} is carried under a second name or holds a removed one")
        seen |= set(group)


def _check_memory(base: State, patch: Patch, cloned: set[str]) -> None:
    """Raise FrameError where a write in place would also reach another tensor or could not be told from another
    element.
    """
    spans = []
    replaced = {name for group in patch.ties for name in group[1:]} | cloned | set(patch.removed) | set(patch.whole)
    written = {part.name for part in patch.tensors} - cloned
    for name, tensor in base.items():
        if name in written and (tensor.is_conj() or tensor.is_neg()):
            raise FrameError(f"tensor {name!r} is a lazy conjugate or negation of its memory: apply into a copy")
        if name in written and _overlaps_itself(tensor):
            raise FrameError(
                f"tensor {name!r} is an expanded view or a window, whose elements share memory: apply into a copy"
            )
        if tensor.numel() and name not in replaced:
            last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            spans.append((str(tensor.device), start, start + (last + 1) * tensor.element_size(), name))
    spans.sort()
    reach, holder, place = 0, "", ""
    for device, start, stop, name in spans:
        if device != place:
            reach, holder, place = 0, "", device
        if start < reach and {name, holder} & written:
            raise FrameError(f"tensors {holder!r} and {name!r} overlap in memory: apply into a copy")
        if stop > reach:
            reach, holder = stop, name


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether two elements of ``tensor`` may share memory: a stride that does not lead beyond the smaller ones."""
    reach = 0
    for step, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def _untied(base: State, patch: Patch) -> set[str]:
    """Return the names that share memory with an earlier name in ``base`` but not in the target."""
    followers = {name for group in patch.ties for name in group[1:]}
    gone = followers | set(patch.removed) | set(patch.whole)
    return {name for group in tied_groups({n: t for n, t in base.items() if n not in gone}) for name in group[1:]}


def check_base(
    digests: tuple[str, str], base: State, base_digest: str | None, base_running: RunningDigest | None, threads: int
) -> None:
    """Raise FrameError unless ``base`` is what ``digests`` (state digest, running digest) name.

    A digest of the base that the caller holds is compared; without one the base is hashed.
    """
    if base_running is not None and digests[1]:
        if base_running.hex != digests[1]:
            raise FrameError(f"the base has running digest {base_running.hex}, {digests[1]} is needed: wrong base")
        if base_digest is None:
            return
    held = base_digest or state_digest(base, threads=threads)
    if held != digests[0]:
        raise FrameError(f"the base has state digest {held[:16]}…, {digests[0][:16]}… is needed: wrong base")


def apply(
    base: State,
    patch: Patch,
    *,
    in_place: bool = False,
    base_digest: str | None = None,
    base_running: RunningDigest | None = None,
    threads: int | None = None,
) -> State:
    """Return the target of ``patch``: a copy, or ``base`` itself with ``in_place``.

    In place, tensors that keep dtype and shape are written where they lie; entries for added, removed, reshaped, re-
    typed and newly tied or untied tensors are set in the dict. ``base_digest`` and ``base_running`` are digests of
    ``base`` that the caller holds; either is verified, without both the base is hashed. With ``base_running`` the
    target's running digest is verified too, before anything is written. Raises FrameError, before anything is written,
    for another base than the patch's, for parts that don't fit it and for memory that can't be patched in place; an
    interruption is undone.
    """
    count = thread_count(threads)
    check_base((patch.base_digest, patch.base_running), base, base_digest, base_running, count)
    check_patch(base, patch)
    if base_running is not None and patch.target_running:
        reached = base_running.after(base, patch, threads=count).hex
        if reached != patch.target_running:
            raise FrameError(f"the patch leads to running digest {reached}, it names {patch.target_running}")
    cloned = _untied(base, patch)
    if in_place:
        _check_memory(base, patch, cloned)
    followers = {name for group in patch.ties for name in group[1:]}
    kept = [name for name in base if name not in patch.removed and name not in patch.whole and name not in followers]
    result = {name: copy_of(base[name]) for name in kept if not in_place or name in cloned}
    result.update({name: base[name] for name in kept if name not in result})
    result.update({name: copy_of(tensor) for name, tensor in patch.whole.items()})
    for leader, *rest in patch.ties:
        for name in rest:
            tied = in_place and name in base and same_memory(base[name]) == same_memory(result[leader])
            result[name] = base[name] if tied else result[leader]
    ordered = {name: result[name] for name in base if name in result}
    ordered.update({name: result[name] for name in sorted(set(result) - set(base))})
    _write(ordered, patch)
    if not in_place:
        return ordered
    for name in set(base) - set(ordered):
        del base[name]
    base.update(ordered)
    return base


def _write(state: State, patch: Patch) -> None:
    """Write the patched elements of ``state``; when anything stops it half way, put the old bits back and raise."""
    undo: list[tuple[TensorPatch, Bits]] = []
    try:
        for part in patch.tensors:
            undo.append((part, _take(state[part.name], part.positions)))
            _put(state[part.name], part.positions, part.bits)
    except BaseException:
        for part, old in reversed(undo):
            _put(state[part.name], part.positions, old)
        raise


def _take(tensor: torch.Tensor, positions: Positions) -> Bits:
    if tensor.device.type != "cpu":
        row = _solid(tensor)
        return bits_of(row[_places(row, positions)])
    if tensor.is_contiguous():
        return bits_of(tensor)[positions]
    view = integer_view(tensor)
    taken: Bits = view[np.unravel_index(positions, view.shape)]
    return taken


def _put(tensor: torch.Tensor, positions: Positions, bits: Bits) -> None:
    if tensor.device.type != "cpu":
        row = _solid(tensor)
        row[_places(row, positions)] = torch.from_numpy(bits.astype(f"<i{bits.itemsize}")).to(row.device, row.dtype)
    elif tensor.is_contiguous():
        _put_row(bits_of(tensor), positions, bits)
    else:
        view = integer_view(tensor)
        view[np.unravel_index(positions, view.shape)] = bits


def _solid(tensor: torch.Tensor) -> torch.Tensor:
    """Return the integers of ``tensor`` in its own memory, on any device, with at least one dimension."""
    row = signed_view(tensor)
    return row.view(1) if row.dim() == 0 else row


def _places(row: torch.Tensor, positions: Positions) -> tuple[torch.Tensor, ...]:
    """Return row-major ``positions`` as one index tensor a dimension, on the device of ``row``."""
    return tuple(torch.from_numpy(axis.copy()).to(row.device) for axis in np.unravel_index(positions, row.shape))
