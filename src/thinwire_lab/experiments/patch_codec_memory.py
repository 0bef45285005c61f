"""How much memory a codec takes beside the two versions and the patch itself.

Each encoding is measured in a process of its own. It holds base and target, has run once on a small part of them (so
that code is loaded and compiled), has given freed memory back to the kernel, and then sets the kernel's mark of its
highest resident size back to the present (``/proc/self/clear_refs``, Linux). No peak is too short for the mark, which
the kernel keeps to about a MiB. What it rose by, less the positions and new bits of the patch, is the extra memory:
frame, streams and temporaries.
"""

import ctypes
import gc
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from thinwire.patch import Patch, State, apply, decode, decode_anchor, encode, encode_anchor, state_digest
from thinwire.spawn import run_workers
from thinwire_lab.experiments.patch_codec_rivals import Step

MIB = 1 << 20
_MARK_DOWN = "5"
"""What the kernel takes as: set the highest resident size to the present one."""
Result = TypeVar("Result")


def _status(field: str) -> int:
    """Bytes of a field of ``/proc/self/status``."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def grown(work: Callable[[], Result]) -> tuple[Result, int]:
    """Return what ``work`` returns, and the bytes by which the resident size of this process peaked above the start."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text(_MARK_DOWN, encoding="utf-8")
    before = _status("VmRSS")
    result = work()
    return result, max(0, _status("VmHWM") - before)


def _bytes_of_patch(patch: Patch) -> int:
    return sum(part.positions.nbytes + part.bits.nbytes for part in patch.tensors)


def _write(step: Step, encoding: str) -> tuple[Patch, bytes]:
    patch = step.patch()
    return patch, encode(patch, step.base, encoding, threads=step.threads)


def _read(frame: bytes, state: State, step: Step) -> None:
    tree, running, threads = step.base_tree.root, step.base_running, step.threads
    patch = decode(frame, state, base_digest=tree, base_running=running, threads=threads)
    apply(state, patch, in_place=True, base_digest=tree, base_running=running, threads=threads)


def _small(step: Step) -> Step:
    """Return the step of one tensor for each dtype that changes, the smallest: every compiled loop is met."""
    smallest: dict[object, str] = {}
    for part in step.patch().tensors:
        tensor = step.base[part.name]
        if tensor.nbytes < step.base[smallest.setdefault(tensor.dtype, part.name)].nbytes:
            smallest[tensor.dtype] = part.name
    base, target = ({name: state[name].clone() for name in smallest.values()} for state in (step.base, step.target))
    return Step.of(base, target, step.threads)


def _measure(rank: int, folder: str, encodings: tuple[str, ...], threads: int) -> dict[str, float]:
    base, target = (decode_anchor((Path(folder) / name).read_bytes(), threads=threads) for name in ("base", "target"))
    step, encoding = Step.of(base, target, threads), encodings[rank]
    warm = _small(step)
    _read(_write(warm, encoding)[1], warm.base, warm)
    del warm
    (patch, frame), written = grown(lambda: _write(step, encoding))
    own = _bytes_of_patch(patch)
    del patch
    _, read = grown(lambda: _read(frame, base, step))
    if state_digest(base, threads=threads) != step.target_tree.root:
        raise RuntimeError(f"the measured reading of {encoding} did not lead to the target")
    return {"encode": (written - own) / MIB, "decode": (read - own) / MIB}


def extra_memory(base: State, target: State, encodings: Sequence[str], threads: int) -> dict[str, dict[str, float]]:
    """Return, by encoding, the extra memory in MiB of "encode" (diff and encode) and "decode" (and apply in place).

    One process an encoding, side by side; versions reach them as frames in a temporary folder. A little below zero is
    possible where memory that was resident before is used again. Raises WorkerError where a process fails.
    """
    with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
        for name, state in (("base", base), ("target", target)):
            (Path(folder) / name).write_bytes(encode_anchor(state, compress=False, threads=threads))
        words = tuple(encodings)
        found = run_workers(_measure, (folder, words, threads), workers=len(words), threads=threads, timeout=600)
    return dict(zip(words, found, strict=True))
