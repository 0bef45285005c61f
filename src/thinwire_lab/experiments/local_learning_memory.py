"""Peak memory of a process tree: PSS, which counts a page shared by n processes as 1/n in each, summed over the tree.

A sum of RSS would count shared rings and library pages once a process. PSS is read from ``/proc/PID/smaps_rollup`` of
the caller and all its descendants, by a thread, every few milliseconds.
"""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from thinwire.local import Batches, TrainingPlan, open_schedule
from thinwire.spawn import run_workers

FIELDS = ("Pss", "Pss_Anon", "Pss_Shmem")
_SAMPLE_SECONDS = 0.02
_IDLE_SECONDS = 1.5


def tree_pss() -> dict[str, int]:
    """Return PSS of this process and its descendants in bytes: in all, anonymous, shared memory (Linux only)."""
    total = dict.fromkeys(FIELDS, 0)
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended since the tree was listed
        for line in lines:
            name, amount = line.split(":")
            if name in total:
                total[name] += int(amount.split()[0]) * 1024
    return total


class PeakSampler:
    """Highest ``tree_pss`` while the context is open, each field by itself."""

    def __init__(self) -> None:
        """Prepare; sampling starts with the context."""
        self.peak = dict.fromkeys(FIELDS, 0)
        self.samples = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-sampler", daemon=True)

    def _sample(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            now = tree_pss()
            self.samples += 1
            self.peak = {name: max(self.peak[name], now[name]) for name in FIELDS}

    def __enter__(self) -> "PeakSampler":
        """Start sampling."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()


def _idle(_rank: int, seconds: float) -> None:
    time.sleep(seconds)  # importing this module has imported torch and the library


def floor_of(processes: int) -> dict[str, int]:
    """Return the PSS fields of this process and ``processes`` workers that have imported everything and do nothing."""
    with PeakSampler() as sampler:
        run_workers(_idle, (_IDLE_SECONDS,), workers=processes, threads=1)
    return sampler.peak


def _train_global(_rank: int, plan: TrainingPlan, batches: Batches) -> None:
    with open_schedule("global_backprop", plan, batches) as run:
        run.advance(plan.steps)


def _train(arm: str, plan: TrainingPlan, batches: Batches) -> None:
    if arm == "global_backprop":  # in a worker, as the stages are: the caller's own memory stays out of the difference
        run_workers(_train_global, (plan, batches), workers=1, threads=plan.threads)
        return
    with open_schedule(arm, plan, batches) as run:
        run.advance(plan.steps)


def peak_of(work: Callable[[], None]) -> tuple[dict[str, int], int]:
    """Return the peak PSS fields while ``work`` runs, and how many samples they rest on."""
    with PeakSampler() as sampler:
        work()
    return sampler.peak, sampler.samples


def net_peak(arm: str, plan: TrainingPlan, batches: Batches) -> tuple[dict[str, int], dict[str, int], int]:
    """Train the plan's steps under ``arm``; return peak less floor, the floor, and the number of samples."""
    floor = floor_of(1 if arm == "global_backprop" else plan.stages)
    peak, samples = peak_of(lambda: _train(arm, plan, batches))
    return {name: peak[name] - floor[name] for name in FIELDS}, floor, samples
