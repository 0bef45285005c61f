"""``thinwire``: patches and anchors of models on disk.

A model is a safetensors file, or a folder with safetensors shards and whatever stands beside them. It is mapped, not
read, so it may be larger than memory. Every command ends with 0 when it is done, with 1 and one line on the error
stream when it refuses (nothing is written then), and with 2 for wrong usage.
"""

import json
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress

from thinwire.checkpoint import appearing, check_output, target_of, write_model
from thinwire.patch import Patch, State, decode, decode_anchor, diff, encode, encode_anchor
from thinwire.patch.bits import bits_of, dtype_name
from thinwire.patch.digest import DigestTree
from thinwire.patch.files import Model, hash_state, interrupted, open_model, shard_files
from thinwire.patch.frame import FrameInfo, inspect, moves
from thinwire.patch.patch import TensorPatch
from thinwire.patch.undo import apply_in_place, restore

app = typer.Typer(
    help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

ModelPath = Annotated[Path, typer.Argument(exists=True, help="A safetensors file, or a folder with shards.")]
FramePath = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A frame file.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Where the result is written.")]


class Encoding(StrEnum):
    """The encodings of a patch (docs/FORMAT.md)."""

    AUTO = "auto"
    PUBLISHED = "published"
    ABSOLUTE = "absolute"
    RELATIVE = "relative"
    CONTEXT = "context"
    DENSE = "dense"


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a named refusal into one line on the error stream and exit code 1."""
    try:
        yield
    except (ValueError, TypeError, OSError, MemoryError, RuntimeError) as error:  # RuntimeError: torch has no memory
        typer.echo(f"thinwire: {' '.join(str(error).split()) or type(error).__name__}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _progress(doing: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a bar of ``total`` bytes if the error stream is a terminal; yields what is to be called with bytes done."""
    hidden = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task(doing, total=total)
        yield lambda done: bar.advance(task, done)


def _digests(model: Model, state: State) -> DigestTree:
    with _progress(f"reading {model.path.name}", model.nbytes) as advance:
        return hash_state(state, advance=advance)


def _frame_bytes(path: Path) -> memoryview:
    """Return the bytes of the frame file ``path``, mapped: an anchor may be larger than memory."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b"")


def _write_frame(frame: bytes, path: Path) -> None:
    info = inspect(frame)
    full = sum(line.changed * line.dtype.itemsize for line in info.header.whole)
    said = f"{path}: {info.kind}, {info.encoding}, {len(frame)} bytes, {info.changed} elements"
    if info.kind == "anchor" and full:
        said += f", {len(frame) / full:.4f} of the plain bytes"
    with appearing(path) as partial:
        with partial.open("wb") as file:
            file.write(frame)
            file.flush()
            os.fsync(file.fileno())
        typer.echo(said)  # a result that can't be told (a full disk, a closed pipe) is a refusal


@app.command("diff")
def diff_command(old: ModelPath, new: ModelPath, output: Output, encoding: Encoding = Encoding.AUTO) -> None:
    """Write the patch that leads from OLD to NEW."""
    with _refusing(), open_model(old) as base, open_model(new) as target:
        check_output(output, [old, new])
        states = base.state(), target.state()
        trees = _digests(base, states[0]), _digests(target, states[1])
        with _progress("comparing"):
            patch = diff(*states, base_tree=trees[0], target_tree=trees[1])
        with _progress("coding"):
            frame = encode(patch, states[0], encoding.value)
        _write_frame(frame, output)


@app.command("anchor")
def anchor_command(
    model: ModelPath,
    output: Output,
    raw: Annotated[bool, typer.Option("--raw", help="Store the plain bytes instead of compressed planes.")] = False,
) -> None:
    """Write all weights of MODEL as one frame."""
    with _refusing(), open_model(model) as source:
        check_output(output, [model])
        state = source.state()
        tree = _digests(source, state)
        with _progress("coding"):
            frame = encode_anchor(state, compress=not raw, tree=tree)
        _write_frame(frame, output)


@app.command("apply")
def apply_command(
    base: ModelPath,
    frame: FramePath,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where the result is written.")] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Patch BASE where it lies.")] = False,
) -> None:
    """Write the model that FRAME makes of BASE to a new place, or patch BASE where it lies; of an anchor, BASE gives
    only the files' layout and what stands beside.

    In place, an undo record stands beside BASE until all is written. A patch that was interrupted before is undone
    first.
    """
    if in_place == (output is not None):
        raise typer.BadParameter("exactly one of -o NEW and --in-place is needed")
    with _refusing():
        data = _frame_bytes(frame)
        if output is None:
            inspect(data)
            _restore(base)
            with ExitStack() as shown:
                advance = shown.enter_context(_progress(f"patching {base.name}", 3 * _size(base)))

                def tell(digest: str) -> None:
                    shown.close()
                    typer.echo(f"{base}: {digest}")  # a result that can't be told is a refusal

                apply_in_place(base, data, advance=advance, tell=tell)
        else:
            _apply_into(base, data, frame, output)


def _apply_into(base: Path, data: memoryview, frame: Path, output: Path) -> None:
    if output.is_dir() or (base.is_dir() and output.exists()):
        raise ValueError(f"{output} exists and is not written over")
    if base.is_dir() and output.resolve().is_relative_to(base.resolve()):
        raise ValueError(f"{output} lies inside {base}, which is copied whole")
    check_output(output, [base, frame])
    info = inspect(data)
    _restore(base)
    with open_model(base) as like:
        state, parts = like.state(), dict[str, TensorPatch]()
        if info.kind == "anchor":
            state = decode_anchor(data, verify=False)  # what is written is hashed below
        else:
            state, parts = target_of(state, decode(data, state, base_digest=_digests(like, state).root))
        size = sum(tensor.nbytes for tensor in state.values())
        with appearing(output, folder=base.is_dir()) as partial:
            with _progress(f"writing {output.name}", size) as advance:
                written = write_model(state, parts, like, partial, advance)
            if written != info.target_digest:
                raise ValueError(f"{frame} leads to another state than the {info.target_digest[:16]}… that it names")
            typer.echo(f"{output}: {written}")


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in shard_files(path) if file.is_file())


def _restore(path: Path) -> tuple[Path, str] | None:
    """Undo what an interrupted patch did to the model at ``path``, and say so."""
    if interrupted(path) is None:
        return None
    with _progress(f"restoring {path.name}", 2 * _size(path)) as advance:
        restored = restore(path, advance=advance)
    if restored is not None:
        model, digest = restored
        typer.echo(
            f"thinwire: an interrupted patch of {model} was found; the old bits were put back: {digest}", err=True
        )
    return restored


@app.command("restore")
def restore_command(model: ModelPath) -> None:
    """Put the old bits back where an interrupted patch left MODEL half written."""
    with _refusing():
        if _restore(model) is None:
            typer.echo(f"{model}: no interrupted patch was found")


@app.command("verify")
def verify_command(model: ModelPath, frame: FramePath) -> None:
    """Say whether MODEL is the version that FRAME leads to."""
    with _refusing():
        expected = inspect(_frame_bytes(frame)).target_digest
        with open_model(model) as held:
            digest = _digests(held, held.state()).root
        if digest != expected:
            raise ValueError(f"{model} has state digest {digest[:16]}…, {frame} leads to {expected[:16]}…")
        typer.echo(digest)


@app.command("inspect")
def inspect_command(
    frame: FramePath,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    base: Annotated[
        Path | None, typer.Option("--base", exists=True, help="The model that FRAME patches: shows all moves.")
    ] = None,
) -> None:
    """Print what FRAME carries, its checksum verified, and how far its changes move (in units of the last place).

    A base is needed only where the frame alone does not tell the moves.
    """
    with _refusing():
        data = _frame_bytes(frame)
        info = inspect(data)
        moved = moves(data)
        if base is not None and info.kind == "patch":
            with open_model(base) as model:
                state = model.state()
                moved = _moves(decode(data, state, base_digest=_digests(model, state).root), state)
        described = {**_describe(info), "moves": None if moved is None else _histogram(moved)}
        typer.echo(json.dumps(described) if as_json else _as_text(described))


def _moves(patch: Patch, base: State) -> dict[int, int]:
    """Return how many elements move by how much: the difference of bit patterns, rounded up to a power of two."""
    counts = np.zeros(64, dtype=np.int64)
    steps = np.uint64(1) << np.arange(64, dtype=np.uint64)
    for part in patch.tensors:
        old = bits_of(base[part.name])[part.positions]
        moved = np.minimum(part.bits - old, old - part.bits)
        counts += np.bincount(np.searchsorted(steps, moved), minlength=64)
    return {1 << power: int(count) for power, count in enumerate(counts) if count}


def _histogram(moved: dict[int, int]) -> dict[str, int]:
    """Name the sizes in ``moved`` (powers of two, each standing for all beyond the one before): 1, 2, 3-4, 5-8."""
    return {str(most) if most < 3 else f"{most // 2 + 1}-{most}": count for most, count in sorted(moved.items())}


def _describe(info: FrameInfo) -> dict[str, Any]:
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
        "version": info.version,
        "kind": info.kind,
        "encoding": info.encoding,
        "base_digest": info.base_digest or None,
        "target_digest": info.target_digest,
        "base_running": info.digests.base_running or None,
        "target_running": info.digests.target_running or None,
        "frame_bytes": info.frame_bytes,
        "payload_bytes": info.payload_bytes,
        "total": info.header.total,
        "changed": info.changed,
        "bits_per_change": 8 * info.frame_bytes / info.changed if info.changed else None,
        "removed": list(info.header.removed),
        "ties": [list(group) for group in info.header.ties],
        "tensors": lines,
    }


def _as_text(described: dict[str, Any]) -> str:
    tensors, moved = described.pop("tensors"), described.pop("moves")
    rows = [f"{key:16} {value}" for key, value in described.items() if value not in (None, [])]
    width = max((len(_printable(line["name"])) for line in tensors), default=0)
    for line in tensors:
        shape = "" if line["shape"] is None else " " + "x".join(map(str, line["shape"]))
        rows.append(
            f"  {_printable(line['name']):{width}} {line['dtype']:10} {line['coding']:9} {line['changed']:>12}{shape}"
        )
    if moved:
        rows.append("moves, in units of the last place")
        rows += [f"  {size:>24} {count:>12}" for size, count in moved.items()]
    return "\n".join(rows)


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def main() -> None:
    """Run the command line."""
    app(prog_name="thinwire")
