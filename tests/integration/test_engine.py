"""The process engine: the synchronous bits at staleness 0, a ledger within its bound, and clean ends of all kinds."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import psutil
import pytest
import torch

from thinwire.local import APPLIED, READ, TrainingPlan, open_schedule
from thinwire.local.asynchronous import RGCAsync
from thinwire.local.engine import core_groups
from thinwire.models import ByteTransformerConfig
from thinwire.spawn import WorkerError

MODEL = ByteTransformerConfig(blocks=4, width=16, heads=2, context=16)
PLAN = TrainingPlan(model=MODEL, stages=4, steps=40, seed=5, staleness=3)


@dataclass(frozen=True)
class RandomBatches:
    """Batches of a generator's bytes; a step in ``slow`` takes long, one in ``broken`` raises."""

    broken: int = -1
    slow: int = -1

    def __call__(self, step):
        if step == self.broken:
            raise OSError("the disk is gone")
        if step == self.slow:
            time.sleep(60)
        g = torch.Generator().manual_seed(7000 + step)
        return torch.randint(256, (2, MODEL.context + 1), generator=g)


pytestmark = pytest.mark.usefixtures("nothing_left")


def synchronous(plan, steps):
    with open_schedule("rgc_sync", plan, RandomBatches()) as run:
        losses = run.advance(steps)
        return run.model(), losses


def test_ledger_keeps_the_bound_and_old_snapshots_still_learn():
    _, expected = synchronous(PLAN, 40)
    with RGCAsync(PLAN, RandomBatches()) as engine:
        losses = engine.advance(3)
        with pytest.raises(ValueError, match="do not fit"):
            engine.advance(38)
        losses += engine.advance(37)
        ledger, of_stages = engine.ledger(), engine.losses()
        assert all(psutil.pid_exists(pid) for pid in engine.pids)
    assert not any(psutil.pid_exists(pid) for pid in engine.pids)
    lag = ledger[:, :, APPLIED] - ledger[:, :, READ]
    assert ledger.shape == (4, 40, 2)
    assert torch.equal(ledger[:, :, APPLIED], torch.arange(40).expand(4, 40))
    assert lag.min() >= 0
    assert lag.max() <= PLAN.staleness
    assert not lag[-1].any()
    assert of_stages[-1] == losses
    assert all(row[0] == pytest.approx(5.545, abs=1e-3) for row in of_stages)
    assert sum(losses[-10:]) == pytest.approx(sum(expected[-10:]), rel=0.02)


PAIR = replace(PLAN, stages=2)


def test_error_in_a_worker_arrives_with_its_traceback():
    with (
        RGCAsync(PAIR, RandomBatches(broken=6)) as engine,
        pytest.raises(WorkerError, match=r"(?s)worker 0 failed: OSError: the disk is gone.*in step\n"),
    ):
        engine.advance(10)


def test_hanging_worker_is_noticed():
    with (
        RGCAsync(PAIR, RandomBatches(slow=5), patience=1.0) as engine,
        pytest.raises(WorkerError, match=r"no worker progressed for 1 s; they stood at steps \[5, 5\]"),
    ):
        engine.advance(10)


_RUNS_UNTIL_KILLED = """
from thinwire.local import TrainingPlan
from thinwire.local.asynchronous import RGCAsync
from thinwire.models import ByteTransformerConfig
from thinwire_lab.experiments.local_learning_text import TextBatches
from pathlib import Path
import sys

if __name__ == "__main__":
    model = ByteTransformerConfig(blocks=2, width=16, heads=2, context=16)
    plan = TrainingPlan(model=model, stages=2, steps=1_000_000, seed=0)
    with RGCAsync(plan, TextBatches(Path(sys.argv[1]), 0, 2, 16)) as engine:
        print(*engine.pids, flush=True)
        engine.advance(1_000_000)
"""


def test_workers_die_with_a_killed_parent(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.bin").write_bytes(bytes(range(256)) * 4)
    script = tmp_path / "run.py"
    script.write_text(_RUNS_UNTIL_KILLED, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert all(psutil.pid_exists(pid) for pid in pids)
        assert len(pids) == 2
        parent.kill()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(psutil.pid_exists(pid) for pid in pids):
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_cores_are_shared_out_only_when_they_suffice(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 2, 4, 6, 8})
    assert core_groups(2, 2) == [{0, 2}, {4, 6}]
    assert core_groups(3, 2) is None
