"""Results on disk: models laid out as the one they came from, and names that appear complete or not at all.

A model is written as its base is: the same files with the same tensors in the same order, the same metadata, and
beside the weights whatever stood there. Where a file keeps its tensors' names, dtypes and shapes, it keeps its header
to the byte, so that a patched copy and a patched original are the same file.
"""

import fcntl
import glob
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from thinwire.patch import Patch, State
from thinwire.patch.bits import thread_count
from thinwire.patch.digest import DigestTree, TensorDigest
from thinwire.patch.files import (
    RESERVED,
    UNDO,
    Model,
    Shard,
    build_header,
    flush_folder,
    hash_tensor,
    refuse_interrupted,
    silent,
)
from thinwire.patch.patch import TensorPatch

_INDEX = ".safetensors.index.json"
_MAX_PROCESS = 1 << 22


def target_of(base: State, patch: Patch) -> tuple[State, dict[str, TensorPatch]]:
    """Return the target of ``patch`` as tensors of ``base`` or of the patch, and the changes still to be made to them.

    Nothing is copied. Tied tensors, which a file holds once for each name, have the same changes.
    """
    state = {name: tensor for name, tensor in base.items() if name not in patch.removed} | dict(patch.whole)
    parts = {part.name: part for part in patch.tensors}
    for leader, *rest in patch.ties:
        for name in rest:
            state[name] = state[leader]
            if leader in parts:
                parts[name] = parts[leader]
    return state, parts


def write_model(
    state: State,
    parts: Mapping[str, TensorPatch],
    like: Model,
    place: Path,
    advance: Callable[[int], object] = silent,
) -> str:
    """Write ``state`` with the changes ``parts`` to the file or into the empty folder ``place``, laid out as ``like``.

    A tensor that ``like`` lacks goes into the last shard. Returns the state digest of what was written; ``advance``
    is called with the bytes after each block. Raises ValueError for what no safetensors file can hold.
    """
    if RESERVED in state:
        raise ValueError(f"no safetensors file can hold a tensor named {RESERVED!r}")
    placed = {line.name for shard in like.shards for line in shard.lines}
    home: dict[str, str] = {}
    leaves: dict[str, TensorDigest] = {}
    for shard in like.shards:
        names = [line.name for line in shard.lines if line.name in state]
        names += sorted(set(state) - placed) if shard is like.shards[-1] else []
        file = place / shard.file.name if place.is_dir() else place
        leaves.update(_write_shard({name: state[name] for name in names}, parts, shard, file, advance))
        home.update(dict.fromkeys(names, shard.file.name))
    if place.is_dir():
        _copy_companions(state, home, like.path, place)
        flush_folder(place)
    return DigestTree(leaves).root


def _write_shard(
    state: State, parts: Mapping[str, TensorPatch], shard: Shard, path: Path, advance: Callable[[int], object]
) -> dict[str, TensorDigest]:
    lines = [(line.name, line.dtype, line.shape) for line in shard.lines]
    if lines == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in state.items()]:
        header, order = shard.header, list(state)
    else:
        header, order = build_header(state, shard.metadata)
    with path.open("wb") as file:

        def take(data: memoryview) -> None:
            file.write(data)
            advance(len(data))

        file.write(header)
        leaves = {name: hash_tensor(name, state[name], parts.get(name), thread_count(None), take) for name in order}
        file.flush()
        os.fsync(file.fileno())
    return leaves


def _copy_companions(state: State, home: Mapping[str, str], source: Path, folder: Path) -> None:
    for file in sorted(source.iterdir()):
        if file.suffix == ".safetensors" or UNDO in file.name:
            continue
        if file.name.endswith(_INDEX):
            _write_index(file, folder / file.name, home, sum(tensor.nbytes for tensor in state.values()))
            continue
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copy2(file, folder / file.name)


def _write_index(source: Path, place: Path, home: Mapping[str, str], size: int) -> None:
    """Write the index ``source`` to ``place`` for tensors of ``size`` bytes that lie in the files ``home`` by name."""
    try:
        index = json.loads(source.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is no JSON: {error}") from None
    if not isinstance(index, dict) or not isinstance(index.setdefault("metadata", {}), dict):
        raise ValueError(f"{source} is no index of shards: a table with a table of metadata is needed")
    index["weight_map"] = {name: home[name] for name in sorted(home)}
    index["metadata"]["total_size"] = size
    place.write_text(json.dumps(index, indent=2) + "\n", encoding="ascii")


def check_output(output: Path, inputs: Iterable[Path]) -> None:
    """Raise ValueError where no result may be written over what stands at ``output``: a folder, one of ``inputs`` or a
    file in one of them, a model beside which an undo record stands.
    """
    if output.is_dir():
        raise ValueError(f"{output} is a folder; the name of the result is needed")
    refuse_interrupted(output)
    if not output.exists():
        return
    for given in inputs:
        files = [given, *given.iterdir()] if given.is_dir() else [given]
        inside = given.is_dir() and output.resolve().is_relative_to(given.resolve())
        if inside or any(file.exists() and output.samefile(file) for file in files):
            raise ValueError(f"{output} belongs to {given}, which is read: it is not written over")


@contextmanager
def appearing(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Yield a file (with ``folder``: a folder) beside ``path`` that becomes ``path`` when all went well and vanishes
    otherwise.

    What killed processes left of results of this name is removed.
    """
    _sweep(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with ExitStack() as stack:
        if folder:
            partial.mkdir()
        else:
            partial.touch(exist_ok=False)
        stack.callback(_remove, partial)
        handle = os.open(partial, os.O_RDONLY)
        stack.callback(os.close, handle)
        with suppress(OSError):  # without locks, the process number alone tells that it is in use
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield partial
        partial.replace(path)
        flush_folder(path.parent)


def _sweep(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        found = re.fullmatch(r"[1-9]\d{0,6}", left.name[len(path.name) + 2 : -len(".partial")])
        if found and not _runs_elsewhere(int(found[0])) and _is_free(left):
            _remove(left)


def _runs_elsewhere(number: int) -> bool:
    if number == os.getpid() or number > _MAX_PROCESS:
        return False
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _is_free(path: Path) -> bool:
    """Whether no process holds ``path``; one of another container has a number that says nothing here."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        os.close(handle)
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
