"""Patches written into a model where it lies, all or nothing even when the process is killed.

Before the first bit changes, an undo record is put beside the model: a frame of encoding ``absolute`` that leads from
the target back to the base. It is on the disk, under its name, before the model is touched, and goes when the model is
whole again, so at every moment one of three things is true: the model is the base, the model is the target, or the
record is there. A record holds positions and bits, not differences; writing it twice or on a model that was patched
only in part gives the base all the same. Memory stays of the order of the patch, whatever the size of the model.
"""

import glob
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from thinwire.patch.digest import DigestTree
from thinwire.patch.files import (
    Model,
    flush_folder,
    hash_state,
    interrupted,
    open_model,
    refuse_interrupted,
    shard_files,
    silent,
    undo_place,
)
from thinwire.patch.frame import FrameInfo, decode, encode, inspect
from thinwire.patch.patch import FrameError, Patch, TensorPatch


def _step(name: str) -> None:
    """Mark the moment after ``name``; does nothing. A test interrupts or kills the process here."""


def _nobody(digest: str) -> None:
    """Tell nobody of the result."""


def apply_in_place(
    path: Path,
    frame: Any,
    *,
    verify: bool = True,
    threads: int | None = None,
    advance: Callable[[int], object] = silent,
    tell: Callable[[str], object] = _nobody,
) -> str:
    """Patch the model at ``path`` (a safetensors file or a folder with shards) where it lies; return its state digest.

    The base's digest, and the digest that the patched model will have, are computed before anything is written;
    ``verify`` reads the changed tensors once more afterwards. ``advance`` is called with the number of bytes after
    each block that was hashed, ``tell`` with the digest when all is written; what it raises undoes the patch. Raises
    FrameError for a harmed frame, another base, an anchor, and a frame that does more than change values; ValueError
    for a model that another process uses, that an interrupted patch left half written, or that lies under a second
    name. Whatever fails, the old bits are put back before the error is raised.
    """
    _check_values_only(inspect(frame))
    _check_one_name(path)
    with open_model(path, write=True) as model:
        refuse_interrupted(path)
        state = model.state()
        tree = hash_state(state, threads=threads, advance=advance)
        patch = decode(frame, state, base_digest=tree.root, threads=threads)
        parts = {part.name: part for part in patch.tensors}
        changed = hash_state({name: state[name] for name in parts}, parts, threads=threads, advance=advance)
        if DigestTree({**tree.tensors, **changed.tensors}).root != patch.target_digest:
            raise FrameError(
                f"the frame leads to another state than the {patch.target_digest[:16]}… that it names; nothing was "
                "written"
            )
        old = tuple(TensorPatch(p.name, p.positions, model.row(p.name)[p.positions]) for p in patch.tensors)
        back = Patch(patch.target_digest, patch.base_digest, patch.total, old)
        record = undo_place(path)
        _write_record(record, encode(back, state, "absolute", threads=threads))
        del state
        try:
            _step("record in place")
            _write(model, patch.tensors)
            if verify and _read_again(model, parts, threads, advance) != changed.tensors:
                raise OSError(f"{path} does not hold what was written to it")
            tell(patch.target_digest)
        except BaseException:
            _write(model, old)
            _remove_record(record)
            raise
        _remove_record(record)
    return patch.target_digest


def restore(
    path: Path, *, threads: int | None = None, advance: Callable[[int], object] = silent
) -> tuple[Path, str] | None:
    """Put the old bits back where an interrupted patch left the model at ``path``, or a file of it, half written.

    Returns the restored model and its state digest, None when there is nothing to restore. Raises ValueError, and
    writes nothing, where the record would not give the base bit for bit (another program wrote to the model since),
    where the record belongs to a folder around ``path``, and where another process uses the model.
    """
    broken = interrupted(path)
    if broken is None:
        return None
    if not broken.is_relative_to(path.resolve()):
        refuse_interrupted(path)
    with open_model(broken, write=True) as model:
        record = undo_place(broken)
        if not record.exists():
            return None  # another process was quicker
        frame = record.read_bytes()
        info = inspect(frame)
        _check_values_only(info)
        if any(line.coding != "absolute" for line in info.header.tensors):
            raise FrameError(f"{record} is no undo record: it does not hold plain bits")
        state = model.state()
        back = decode(frame, state, base_digest=info.base_digest, threads=threads)
        parts = {part.name: part for part in back.tensors}
        tree = hash_state(state, parts, threads=threads, advance=advance)
        if tree.root != back.target_digest:
            raise ValueError(
                f"{record} does not lead {broken} back to its base: another program wrote to it since; nothing was "
                "written"
            )
        del state
        _step("record read")
        _write(model, back.tensors)
        if _read_again(model, parts, threads, advance) != {name: tree.tensors[name] for name in parts}:
            raise OSError(f"{broken} does not hold what was written to it; {record} is kept")
        _remove_record(record)
    return broken, back.target_digest


def _check_values_only(info: FrameInfo) -> None:
    header = info.header
    said = ""
    if info.kind == "anchor":
        said = "the frame is an anchor"
    elif header.whole:
        said = f"the frame adds, reshapes or re-types tensor {header.whole[0].name!r}"
    elif header.removed:
        said = f"the frame removes tensor {header.removed[0]!r}"
    elif header.ties:
        said = f"the frame ties tensors {', '.join(map(repr, header.ties[0][:2]))}"
    if said:
        raise FrameError(f"{said}, but in place only values can change: apply it with -o NEW")


def _check_one_name(path: Path) -> None:
    for file in shard_files(path):
        if file.is_symlink():
            raise ValueError(f"{file} is a symbolic link: name the file itself, or apply with -o NEW")
        links = file.stat().st_nlink
        if links > 1:
            raise ValueError(f"{file} has {links} names (hard links), which would all change: apply with -o NEW")


def _write_record(record: Path, frame: bytes) -> None:
    _clear_partials(record)
    partial = record.with_name(f"{record.name}.{os.getpid()}.partial")
    try:
        with partial.open("xb") as file:
            file.write(frame)
            file.flush()
            _step("record begun")
            os.fsync(file.fileno())
        _step("record written")
        partial.replace(record)
        _step("record named")
        flush_folder(record.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        record.unlink(missing_ok=True)
        raise


def _clear_partials(record: Path) -> None:
    """Remove what killed processes left of records: who holds the model's lock is the only one to write one."""
    for left in record.parent.glob(f"{glob.escape(record.name)}.*.partial"):
        left.unlink(missing_ok=True)


def _remove_record(record: Path) -> None:
    record.unlink()
    _step("record removed")
    flush_folder(record.parent)
    _clear_partials(record)


def _write(model: Model, parts: Iterable[TensorPatch]) -> None:
    for part in parts:
        row = model.row(part.name)
        # what holds its bits already stays clean: on a full disk a hole that was never filled can't be filled now
        stale = row[part.positions] != part.bits
        row[part.positions[stale]] = part.bits[stale]
        _step(f"wrote {part.name}")
    model.flush()
    _step("flushed")


def _read_again(
    model: Model, parts: Iterable[str], threads: int | None, advance: Callable[[int], object]
) -> dict[str, Any]:
    state = model.state()
    found = hash_state({name: state[name] for name in parts}, threads=threads, advance=advance)
    _step("read again")
    return dict(found.tensors)
