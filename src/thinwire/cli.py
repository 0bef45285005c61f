"""``thinwire``: patches and anchors of models on disk.

A model is a safetensors file, or a folder with safetensors shards and whatever stands beside them. Every command ends
with 0 when it is done, with 1 and one line on the error stream when it refuses (nothing is written then), and with 2
for wrong usage.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from thinwire.patch import State, apply, decode, decode_anchor, diff, encode, encode_anchor, state_digest
from thinwire.patch.bits import dtype_name
from thinwire.patch.frame import FrameInfo, inspect

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

_RESERVED = "__metadata__"
_INDEX = "model.safetensors.index.json"
Model = Annotated[Path, typer.Argument(exists=True, help="A safetensors file, or a folder with shards.")]
Frame = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A frame file.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where the result is written.")]


class Encoding(StrEnum):
    """The encodings of a patch (docs/FORMAT.md)."""

    AUTO = "auto"
    PUBLISHED = "published"
    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    DENSE = "dense"


@dataclass(frozen=True)
class Shard:
    """One safetensors file of a model: its name, the tensors in it in order, and its metadata."""

    file: str
    names: tuple[str, ...]
    metadata: dict[str, str] | None


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk: its path, its weights, and how they are spread over files."""

    path: Path
    state: State
    shards: tuple[Shard, ...]


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a safetensors file, or all of a folder's, into memory.

    Raises ValueError for a folder without safetensors and for a name that stands in two shards, SafetensorError for a
    harmed file.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no safetensors file")
    state: State = {}
    shards = []
    for file in files:
        try:
            with safe_open(file, framework="pt", device="cpu") as source:
                names = tuple(source.keys())
                twice = [name for name in names if name in state]
                if twice:
                    raise ValueError(f"tensor {twice[0]!r} stands in {file.name} and in a shard before it")
                state.update({name: source.get_tensor(name) for name in names})
                shards.append(Shard(file.name, names, source.metadata()))
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file} is no sound safetensors file: {error}") from None
    return Checkpoint(path, state, tuple(shards))


def write_checkpoint(state: State, like: Checkpoint, path: Path, line: str) -> None:
    """Write ``state`` to ``path`` as ``like`` is laid out: same files, metadata, and files beside the weights.

    A tensor that ``like`` lacks goes into the last shard. ``line`` is printed, and ``path`` appears complete or not at
    all. Raises ValueError where a folder would be written over or into itself, and for a name that safetensors keeps
    for itself.
    """
    if path.is_dir() or (like.path.is_dir() and path.exists()):
        raise ValueError(f"{path} exists and is not written over")
    if like.path.is_dir() and path.resolve().is_relative_to(like.path.resolve()):
        raise ValueError(f"{path} lies inside {like.path}, which is copied whole")
    if _RESERVED in state:
        raise ValueError(f"no safetensors file can hold a tensor named {_RESERVED!r}")
    with _appearing(path, line) as partial:
        if not like.path.is_dir():
            _write_shard(state, like.shards[0], partial)
            return
        partial.mkdir()
        placed = {name for shard in like.shards for name in shard.names}
        for shard in like.shards:
            names = [name for name in shard.names if name in state]
            names += sorted(set(state) - placed) if shard is like.shards[-1] else []
            _write_shard({name: state[name] for name in names}, shard, partial / shard.file)
            placed |= set(names)
        _copy_companions(state, like, partial)


def _write_shard(state: State, shard: Shard, path: Path) -> None:
    # cloned: safetensors refuses tensors that share memory, which a patch may have tied
    save_file({name: tensor.clone() for name, tensor in state.items()}, path, metadata=shard.metadata)


def _copy_companions(state: State, like: Checkpoint, folder: Path) -> None:
    for file in sorted(like.path.iterdir()):
        if file.suffix == ".safetensors" or file.name == _INDEX:
            continue
        if file.is_dir():
            shutil.copytree(file, folder / file.name)
        else:
            shutil.copy2(file, folder / file.name)
    if (like.path / _INDEX).exists():
        index = json.loads((like.path / _INDEX).read_text())
        home = {name: shard.file for shard in like.shards for name in shard.names}
        index["weight_map"] = {name: home.get(name, like.shards[-1].file) for name in sorted(state)}
        index.setdefault("metadata", {})["total_size"] = sum(tensor.nbytes for tensor in state.values())
        (folder / _INDEX).write_text(json.dumps(index, indent=2) + "\n")


@contextmanager
def _appearing(path: Path, line: str) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to, which becomes ``path`` when all went well and vanishes otherwise.

    ``line`` is printed before: a result that can't be told (a full disk, a closed pipe) is a refusal, and nothing is
    written then.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder; the name of the result is needed")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _remove(partial)  # of a killed process that had the same number
        yield partial
        typer.echo(line)
        partial.replace(path)
    finally:
        _remove(partial)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a named refusal into one line on the error stream and exit code 1."""
    try:
        yield
    except (ValueError, TypeError, OSError, SafetensorError, MemoryError, RuntimeError) as error:  # torch: no memory
        typer.echo(f"thinwire: {' '.join(str(error).split()) or type(error).__name__}", err=True)
        raise typer.Exit(1) from None


def _write_frame(frame: bytes, path: Path) -> None:
    info = inspect(frame)
    full = sum(line.changed * line.dtype.itemsize for line in info.header.whole)
    said = f"{path}: {info.kind}, {info.encoding}, {len(frame)} bytes, {info.changed} elements"
    if info.kind == "anchor" and full:
        said += f", {len(frame) / full:.4f} of the plain bytes"
    with _appearing(path, said) as partial:
        partial.write_bytes(frame)


@app.command("diff")
def diff_command(old: Model, new: Model, output: Output, encoding: Encoding = Encoding.AUTO) -> None:
    """Write the patch that leads from OLD to NEW."""
    with _refusing():
        base = read_checkpoint(old).state
        patch = diff(base, read_checkpoint(new).state)
        _write_frame(encode(patch, base, encoding.value), output)


@app.command("anchor")
def anchor_command(
    model: Model,
    output: Output,
    raw: Annotated[bool, typer.Option("--raw", help="Store the plain bytes instead of compressed planes.")] = False,
) -> None:
    """Write all weights of MODEL as one frame."""
    with _refusing():
        _write_frame(encode_anchor(read_checkpoint(model).state, compress=not raw), output)


@app.command("apply")
def apply_command(base: Model, frame: Frame, output: Output) -> None:
    """Write the model that FRAME makes of BASE; of an anchor, BASE gives only the files' layout and what stands
    beside.
    """
    with _refusing():
        data = frame.read_bytes()
        like = read_checkpoint(base)
        info = inspect(data)
        if info.kind == "anchor":
            state = decode_anchor(data)
        else:
            digest = state_digest(like.state)
            state = apply(like.state, decode(data, like.state, base_digest=digest), base_digest=digest)
            if state_digest(state) != info.target_digest:
                raise ValueError(f"{frame} leads to another state than the {info.target_digest[:16]}… that it names")
        write_checkpoint(state, like, output, f"{output}: {info.target_digest}")


@app.command("verify")
def verify_command(model: Model, frame: Frame) -> None:
    """Say whether MODEL is the version that FRAME leads to."""
    with _refusing():
        expected = inspect(frame.read_bytes()).target_digest
        held = state_digest(read_checkpoint(model).state)
        if held != expected:
            raise ValueError(f"{model} has state digest {held[:16]}…, {frame} leads to {expected[:16]}…")
        typer.echo(held)


@app.command("inspect")
def inspect_command(
    frame: Frame, as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False
) -> None:
    """Print what FRAME carries, its checksum verified; no base is needed."""
    with _refusing():
        described = _describe(inspect(frame.read_bytes()))
        typer.echo(json.dumps(described) if as_json else _as_text(described))


def _describe(info: FrameInfo) -> dict[str, object]:
    lines = [
        {
            "name": line.name,
            "dtype": dtype_name(line.dtype),
            "shape": None if line.shape is None else list(line.shape),
            "coding": line.coding,
            "changed": line.changed,
        }
        for line in info.header.tensors + info.header.whole
    ]
    return {
        "kind": info.kind,
        "encoding": info.encoding,
        "base_digest": info.base_digest or None,
        "target_digest": info.target_digest,
        "frame_bytes": info.frame_bytes,
        "payload_bytes": info.payload_bytes,
        "total": info.header.total,
        "changed": info.changed,
        "bits_per_change": 8 * info.frame_bytes / info.changed if info.changed else None,
        "removed": list(info.header.removed),
        "ties": [list(group) for group in info.header.ties],
        "tensors": lines,
    }


def _as_text(described: dict[str, object]) -> str:
    tensors = described.pop("tensors")
    assert isinstance(tensors, list)
    rows = [f"{key:16} {value}" for key, value in described.items() if value not in (None, [])]
    width = max((len(_printable(line["name"])) for line in tensors), default=0)
    for line in tensors:
        shape = "" if line["shape"] is None else " " + "x".join(map(str, line["shape"]))
        rows.append(
            f"  {_printable(line['name']):{width}} {line['dtype']:10} {line['coding']:9} {line['changed']:>12}{shape}"
        )
    return "\n".join(rows)


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def main() -> None:
    """Run the command line."""
    app(prog_name="thinwire")
