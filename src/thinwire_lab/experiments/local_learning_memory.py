"""Peak memory of a schedule: PSS, which counts a page shared by n processes as 1/n in each, over all its processes.

A sum of RSS would count shared rings and library pages once a process. PSS is read from ``/proc/PID/smaps_rollup`` of
all descendants, by a thread, every few milliseconds. Every arm runs in a process of its own, so that the caller's
memory stays out, and the same arm with a model of a few kilobytes gives the process floor that is taken off: what its
processes cost by being there, the code that a step loads included.

The C library keeps freed memory for the next request, so a peak holds what is in use and what is kept in pieces that
did not fit. ``returning`` starts the processes with an allocator that gives large pieces back at once: that peak is
what is in use, and what the library's own account of its bytes is compared with. It is not what a user gets by default.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from thinwire.local import Batches, TrainingPlan, open_schedule
from thinwire.models import ByteTransformerConfig
from thinwire.spawn import run_workers

FIELDS = ("Pss", "Pss_Anon", "Pss_Shmem")
MARKS = ("VmHWM", "RssFile", "RssShmem")
RETURNING = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Settings of glibc: pieces from 128 KiB on are returned when they are freed."""
_SAMPLE_SECONDS = 0.004


def pss_of(pid: int) -> dict[str, int]:
    """Return PSS of a process in bytes: in all, anonymous, shared memory; zeros for one that has ended (Linux only)."""
    found = dict.fromkeys(FIELDS, 0)
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    except (FileNotFoundError, ProcessLookupError):
        return found
    for line in lines:
        name, amount = line.split(":")
        if name in found:
            found[name] = int(amount.split()[0]) * 1024
    return found


def marks_of(pid: int) -> dict[str, int]:
    """Return a process's highest resident memory, and what of its memory is mapped from files and shared, in bytes."""
    found = dict.fromkeys(MARKS, 0)
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return found
    for line in lines:
        name, _, amount = line.partition(":")
        if name in found:
            found[name] = int(amount.split()[0]) * 1024
    return found


class PeakSampler:
    """While the context is open: the highest sum of PSS over this process's descendants, and each one's own peak.

    The highest sum may fall between two samples where it is narrow; a process's own peak is the kernel's mark.
    """

    def __init__(self) -> None:
        """Prepare; sampling starts with the context."""
        self.peak = dict.fromkeys(FIELDS, 0)
        """Highest sum at one time, each field by itself."""
        self.marks: dict[int, dict[str, int]] = {}
        """Highest of each of ``marks_of``, by process id."""
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-sampler", daemon=True)

    def _sample(self) -> None:
        here = psutil.Process()
        while not self._stop.wait(_SAMPLE_SECONDS):
            total = dict.fromkeys(FIELDS, 0)
            for process in here.children(recursive=True):
                now = pss_of(process.pid)
                marks, seen = marks_of(process.pid), self.marks.setdefault(process.pid, dict.fromkeys(MARKS, 0))
                self.marks[process.pid] = {name: max(seen[name], marks[name]) for name in MARKS}
                total = {name: total[name] + now[name] for name in FIELDS}
            self.peak = {name: max(self.peak[name], total[name]) for name in FIELDS}
            self.samples += 1

    @property
    def in_use(self) -> int:
        """Bytes: the processes' own peaks of anonymous memory (not at one time), and the peak of shared memory.

        The kernel's mark is of all resident memory; what is mapped from files and shared, which only grows while a
        process trains, is taken off at its highest.
        """
        each = (seen["VmHWM"] - seen["RssFile"] - seen["RssShmem"] for seen in self.marks.values())
        return sum(each) + self.peak["Pss_Shmem"]

    def __enter__(self) -> "PeakSampler":
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class Peak:
    """Of one arm, in bytes: peak less floor by field; the processes' own peaks and shared memory, less the floor's."""

    net: dict[str, int]
    net_each: int
    floor: int
    samples: int


@dataclass(frozen=True)
class ZeroBatches:
    """Batches of zeros, ``rows`` windows of ``window`` bytes."""

    rows: int
    window: int

    def __call__(self, step: int) -> torch.Tensor:
        """Return the same batch for every step."""
        return torch.zeros(self.rows, self.window, dtype=torch.int64)


def _tiny(plan: TrainingPlan, batches: Batches) -> tuple[TrainingPlan, Batches]:
    """The same schedule over a model of a few kilobytes, for as many steps."""
    model = ByteTransformerConfig(blocks=plan.stages, width=16, heads=2, context=16)
    return replace(plan, model=model, sizes=(), overlap=0, private=0), ZeroBatches(batches(0).shape[0], 17)


@contextlib.contextmanager
def _allocator(*, returning: bool) -> Iterator[None]:
    """Let processes that start within take the settings."""
    before = {name: os.environ.get(name) for name in RETURNING}
    if returning:
        os.environ.update(RETURNING)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _train(_rank: int, arm: str, plan: TrainingPlan, batches: Batches) -> None:
    with open_schedule(arm, plan, batches) as run:
        run.advance(plan.steps)


def _sampled(arm: str, plan: TrainingPlan, batches: Batches, *, returning: bool) -> PeakSampler:
    with _allocator(returning=returning), PeakSampler() as sampler:
        run_workers(_train, (arm, plan, batches), workers=1, threads=plan.threads)
    return sampler


def net_peak(arm: str, plan: TrainingPlan, batches: Batches, *, returning: bool = False) -> Peak:
    """Train the plan's steps under ``arm`` and return its peak less that of the same arm with a tiny model."""
    floor = _sampled(arm, *_tiny(plan, batches), returning=returning)
    sampler = _sampled(arm, plan, batches, returning=returning)
    return Peak(
        net={name: sampler.peak[name] - floor.peak[name] for name in FIELDS},
        net_each=sampler.in_use - floor.in_use,
        floor=floor.peak["Pss"],
        samples=sampler.samples,
    )
