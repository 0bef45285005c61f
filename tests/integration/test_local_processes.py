"""Process schedules against those in one process: the same bits where they must be, and clean ends for all."""

import os
import signal
import time
from dataclasses import dataclass, replace

import psutil
import pytest
import torch

from thinwire.local import APPLIED, READ, TrainingPlan, open_schedule, resume, save
from thinwire.local.stages import bf16_products
from thinwire.models import ByteTransformerConfig
from thinwire.spawn import WorkerError

MODEL = ByteTransformerConfig(blocks=6, width=16, heads=2, context=16)
PLAN = TrainingPlan(model=MODEL, stages=3, steps=12, seed=5, staleness=0)
PROCESSES = ("global_ddp", "global_1f1b", "local_async", "rgc_async")


@dataclass(frozen=True)
class RandomBatches:
    """Batches of a generator's bytes; a step in ``slow`` takes long."""

    slow: int = -1

    def __call__(self, step):
        if step == self.slow:
            time.sleep(60)
        g = torch.Generator().manual_seed(7000 + step)
        return torch.randint(256, (6, MODEL.context + 1), generator=g)


pytestmark = pytest.mark.usefixtures("nothing_left")


def same_bits(one, other):
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[n].view(torch.int32), b[n].view(torch.int32)) for n in a)


def trained(name, plan, steps=6):
    with open_schedule(name, plan, RandomBatches()) as run:
        losses = run.advance(steps)
        return run.model(), losses


OPTIONS = {
    "overlap of whole stages": {"overlap": 2},
    "unequal stages, all options": {
        "sizes": (1, 2, 3), "overlap": 1, "private": 1, "similarity": 0.3, "consensus": "depth", "readout_lr": 0.03,
    },
    "final gradient alone": {"consensus": "final", "stages": 2},
    "fresh steps": {"staleness": 3, "fresh_steps": 6, "stages": 2},
}  # fmt: skip


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_nothing_stale_is_the_synchronous_schedule_bit_for_bit(changes):
    plan = replace(PLAN, **changes)
    expected, expected_losses = trained("rgc_sync", plan)
    with open_schedule("rgc_async", plan, RandomBatches()) as run:
        losses = run.advance(2) + run.advance(4)
        model, ledger = run.model(), run.ledger()
    assert losses == expected_losses
    assert same_bits(model, expected)
    assert torch.equal(ledger[:, :, READ], ledger[:, :, APPLIED])


def test_stages_without_exchange_are_independent_ones_bit_for_bit():
    expected, expected_losses = trained("local_independent", PLAN)
    model, losses = trained("local_async", PLAN)
    assert losses == expected_losses
    assert same_bits(model, expected)


@pytest.mark.parametrize(
    ("name", "changes"), [("global_ddp", {}), ("global_1f1b", {"microbatches": 1}), ("rgc_async", {})]
)
def test_one_process_is_global_backpropagation_bit_for_bit(name, changes):
    plan = replace(PLAN, stages=1, **changes)
    expected, expected_losses = trained("global_backprop", plan)
    model, losses = trained(name, plan)
    assert losses == expected_losses
    assert same_bits(model, expected)


@pytest.mark.parametrize(("name", "changes"), [("global_ddp", {}), ("global_1f1b", {"microbatches": 3})])
def test_global_schedules_differ_from_backpropagation_by_rounding(name, changes):
    """The weights after one update: Muon enlarges a difference in rounding later as it would any other."""
    expected, expected_losses = trained("global_backprop", PLAN, steps=1)
    _, further = trained("global_backprop", PLAN)
    with open_schedule(name, replace(PLAN, **changes), RandomBatches()) as run:
        losses = run.advance(1)
        model = run.model()
        losses += run.advance(5)
    assert losses[0] == pytest.approx(expected_losses[0], rel=1e-6)
    for (key, value), reference in zip(model.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(value, reference, rtol=1e-4, atol=2e-5, msg=key)
    assert losses == pytest.approx(further, rel=2e-3)


def test_old_snapshots_of_readout_and_overlapped_blocks_keep_the_bound_and_learn():
    plan = replace(PLAN, stages=2, staleness=2, overlap=2, fresh_steps=3)
    _, expected = trained("rgc_sync", plan, steps=12)
    with open_schedule("rgc_async", plan, RandomBatches()) as run:
        losses = run.advance(7) + run.advance(5)
        ledger = run.ledger()
    lag = ledger[:, :, APPLIED] - ledger[:, :, READ]
    assert lag.min() >= 0
    assert lag.max() <= 2
    assert not lag[:, :3].any()
    assert losses[-1] == pytest.approx(expected[-1], rel=0.02)


@pytest.mark.parametrize("name", ["global_backprop", "local_independent", "rgc_sync", *PROCESSES])
def test_a_resumed_run_ends_in_the_bits_of_an_uninterrupted_one(name, tmp_path):
    plan = replace(PLAN, stages=2)
    if name.startswith(("rgc", "local")):
        plan = replace(plan, private=1, overlap=1)
    with open_schedule(name, plan, RandomBatches()) as run:
        first = run.advance(5)
        save(run, tmp_path / "run.safetensors")
        rest = run.advance(7)
        expected, ledger = run.model(), run.ledger()
    assert [path.name for path in tmp_path.iterdir()] == ["run.safetensors"]
    with resume(tmp_path / "run.safetensors", plan, RandomBatches()) as run:
        assert run.done == 5
        assert run.advance(7) == rest
        assert same_bits(run.model(), expected)
        again = run.ledger()
    assert (ledger is None and again is None) or torch.equal(ledger, again)
    assert len(first) == 5


def test_gradients_under_way_are_saved_with_the_run(tmp_path):
    plan = replace(PLAN, stages=2, staleness=2, overlap=1)
    with open_schedule("rgc_async", plan, RandomBatches()) as run:
        run.advance(5)
        state = run.state()
        save(run, tmp_path / "run.safetensors")
        run.advance(7)
    assert sorted(name for name in state if name.startswith("tail.")) == [f"tail.0.{step}" for step in (3, 4)]
    with resume(tmp_path / "run.safetensors", plan, RandomBatches()) as run:
        run.advance(7)
        assert run.ledger()[:, :5].min() >= 0


def test_a_save_of_another_plan_or_of_nothing_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    with open_schedule("rgc_sync", PLAN, RandomBatches()) as run:
        run.advance(1)
        save(run, path)
    with pytest.raises(ValueError, match=r"run\.safetensors: saved under another plan: seed was 5, is 6"):
        resume(path, replace(PLAN, seed=6), RandomBatches())
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="not a safetensors file"):
        resume(path, PLAN, RandomBatches())
    with pytest.raises(FileNotFoundError):
        resume(tmp_path / "absent", PLAN, RandomBatches())


@pytest.mark.parametrize("name", PROCESSES)
def test_killed_worker_of_any_schedule_ends_the_run_within_seconds(name):
    with open_schedule(name, replace(PLAN, stages=2), RandomBatches(slow=4)) as run:
        pids = run.pids
        os.kill(pids[1], signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(WorkerError, match="worker 1 died with exit code -9"):
            run.advance(10)
        assert time.monotonic() - began < 5
        assert not any(psutil.pid_exists(pid) for pid in pids)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("global_ddp", {"stages": 4}, "4 replicas do not divide a batch of 6 rows"),
        ("global_1f1b", {"microbatches": 4}, "4 micro-batches do not divide a batch of 6 rows"),
        ("global_1f1b", {"overlap": 1}, "a global pipeline has neither"),
    ],
)
def test_plans_that_a_schedule_cannot_follow_are_refused_before_a_process_starts(name, changes, message):
    with pytest.raises(ValueError, match=message):
        open_schedule(name, replace(PLAN, **changes), RandomBatches())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's compiler imports its predecessor
def test_compiled_blocks_learn_alike():
    expected, expected_losses = trained("rgc_sync", PLAN)
    for name in ("rgc_sync", "rgc_async"):
        _, losses = trained(name, replace(PLAN, compiled=True))
        assert losses == pytest.approx(expected_losses, rel=2e-3)
    assert expected.config == MODEL


@pytest.mark.skipif(bf16_products(), reason="this processor has BF16 products")
def test_bf16_is_refused_where_the_processor_has_none():
    with pytest.raises(ValueError, match="autocast needs a processor with BF16 products"):
        replace(PLAN, autocast=True)
