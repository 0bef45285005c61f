"""Worker processes: results in order, errors with their traceback, and no worker that outlives its parent."""

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest
import torch

from thinwire import spawn
from thinwire.spawn import WorkerError, run_workers


def rank_and_threads(rank, offset):
    return rank + offset, torch.get_num_threads()


def fail_on_one(rank):
    if rank == 1:
        raise KeyError("no such tensor: layers.7")
    time.sleep(600)


def die_on_zero(rank):
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(600)


def sleep_long(rank):
    time.sleep(600)


def tensor_of_rank(rank):
    return torch.full((3,), float(rank))


def die_in_its_report(rank):
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    time.sleep(0.3)
    return Stuck()


class Stuck:
    """Pickles to more than a pipe holds, so that its sender waits for the reader."""

    def __reduce__(self):
        return (bytes, (bytes(1 << 24),))


def test_a_tensor_outlives_the_worker_that_returns_it():
    (result,) = run_workers(tensor_of_rank, workers=1, threads=1)
    assert result.tolist() == [0.0] * 3


def test_a_worker_killed_within_its_report_is_named(monkeypatch):
    wait = spawn.wait

    def late(reports, timeout):
        ready = wait(reports, timeout)
        time.sleep(1.5)  # the kill falls within the report
        return ready

    monkeypatch.setattr(spawn, "wait", late)
    with pytest.raises(WorkerError, match="worker 0 died with exit code -9"):
        run_workers(die_in_its_report, workers=1, threads=1)


def test_results_come_in_rank_order_with_the_thread_count():
    assert run_workers(rank_and_threads, (10,), workers=2, threads=1) == [(10, 1), (11, 1)]


def test_the_first_error_ends_all_and_carries_its_traceback():
    with pytest.raises(WorkerError, match=r"worker 1 failed: KeyError: 'no such tensor: layers.7'[\s\S]*fail_on_one"):
        run_workers(fail_on_one, workers=2, threads=1)


def test_a_killed_worker_is_named():
    with pytest.raises(WorkerError, match="worker 0 died with exit code -9"):
        run_workers(die_on_zero, workers=2, threads=1)


def test_a_hung_worker_is_ended_at_the_time_out():
    with pytest.raises(WorkerError, match=r"workers \[0\] did not end within 0.2 s"):
        run_workers(sleep_long, workers=1, threads=1, timeout=0.2)


def test_workers_die_with_a_killed_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\nfrom thinwire.spawn import run_workers\n"
        "def work(rank):\n    time.sleep(600)\n"
        "if __name__ == '__main__':\n    run_workers(work, workers=2, threads=1)\n"
    )
    parent = subprocess.Popen([sys.executable, str(script)])
    deadline = time.monotonic() + 60
    children = []
    while time.monotonic() < deadline:
        children = [c for c in psutil.Process(parent.pid).children() if "spawn_main" in " ".join(c.cmdline())]
        if len(children) == 2 and all(child.cpu_times().user > 0.5 for child in children):
            break
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    _, left = psutil.wait_procs(children, timeout=10)
    assert len(children) == 2
    assert all(child.status() == psutil.STATUS_ZOMBIE for child in left)  # dead; it is init's to reap them
