"""Worker processes that cannot outlive their parent and cannot fail in silence.

Every part that trains in several processes starts them here, so that four promises hold everywhere: processes are
spawned, never forked (a fork after the first OpenMP region can hang); each worker sets its thread count and checks that
it holds; the kernel ends a worker when its parent dies, however the parent died; and the first error of any worker ends
the others and is raised in the parent with the worker's traceback.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

_PR_SET_PDEATHSIG = 1


class WorkerError(RuntimeError):
    """A worker raised, was killed or did not end in time; the message holds its rank and traceback."""


def end_with_parent() -> None:
    """Ask the kernel to kill this process when its parent thread dies (Linux; elsewhere a daemon process must do)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def set_threads(threads: int) -> None:
    """Fix the number of intra-op threads of this process at ``threads``.

    Raises RuntimeError when torch does not take the number: every timing and every bit after that would be of another
    set-up.
    """
    torch.set_num_threads(threads)
    held = torch.get_num_threads()  # the first reading adopts the number for this thread
    if held != threads:
        raise RuntimeError(f"torch runs {held} threads where {threads} were set")


def _work(
    target: Callable[..., Any], rank: int, args: tuple[Any, ...], threads: int, parent: int, report: Connection
) -> None:
    end_with_parent()
    if os.getppid() != parent:  # the parent died before the kernel was asked
        os._exit(1)
    try:
        set_threads(threads)
        report.send(("result", target(rank, *args)))
        report.poll(None)  # a tensor crosses as a handle that ends with this process: stay until the parent took it
    except BaseException as error:
        report.send(("error", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        raise SystemExit(1) from None
    finally:
        report.close()


def run_workers(
    target: Callable[..., Any],
    args: Sequence[Any] = (),
    *,
    workers: int,
    threads: int,
    timeout: float | None = None,
) -> list[Any]:
    """Run ``target(rank, *args)`` in ``workers`` spawned processes and return their results in rank order.

    ``target`` and ``args`` must be picklable; ``threads`` is the intra-op thread count of each worker; ``timeout`` is
    in seconds. Raises WorkerError for the first worker that raises, is killed or is still running at the time-out,
    after the others were ended.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[BaseProcess] = []
    reports: list[Connection] = []
    try:
        for rank in range(workers):
            here, there = context.Pipe()
            process: BaseProcess = context.Process(
                target=_work, args=(target, rank, tuple(args), threads, os.getpid(), there)
            )
            process.start()
            there.close()
            processes.append(process)
            reports.append(here)
        return _collect(processes, reports, timeout)
    finally:
        for started in processes:
            if started.is_alive():
                started.kill()
            started.join()
        for report in reports:
            report.close()


def _collect(processes: Sequence[BaseProcess], reports: Sequence[Connection], timeout: float | None) -> list[Any]:
    deadline = None if timeout is None else time.monotonic() + timeout
    results: dict[int, Any] = {}
    open_ranks = dict(enumerate(reports))
    while open_ranks:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready = wait(list(open_ranks.values()), left)
        if not ready:
            raise WorkerError(f"workers {sorted(open_ranks)} did not end within {timeout:g} s")
        for rank, report in list(open_ranks.items()):
            if report not in ready:
                continue
            del open_ranks[rank]
            try:
                kind, value = report.recv()
            except (EOFError, OSError):  # before its report, or within it
                report.close()
                processes[rank].join()
                raise WorkerError(f"worker {rank} died with exit code {processes[rank].exitcode}") from None
            report.close()
            if kind == "error":
                raise WorkerError(f"worker {rank} failed: {value}")
            results[rank] = value
    return [results[rank] for rank in range(len(reports))]
