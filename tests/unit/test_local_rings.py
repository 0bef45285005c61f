"""Rings and snapshots in one process: order, refusals, no torn reads, no names left in shared memory."""

from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from thinwire.local.rings import Halted, Ring, RingError, Snapshots

CONTEXT = get_context("spawn")
LAYOUT = {"x": ((3,), torch.float32), "n": ((2,), torch.int64)}


def never():
    return False


def item(step):
    return {"x": torch.full((3,), float(step)), "n": torch.tensor([step, -step])}


def test_items_come_out_whole_and_in_order_round_after_round():
    ring = Ring(CONTEXT, 2, LAYOUT)
    for step in range(7):
        ring.put(step, never, **item(step))
        out = ring.take(step, never)
        assert all(torch.equal(out[name], value) for name, value in item(step).items())
        ring.release(step)


def test_a_slot_in_use_is_never_overwritten():
    ring = Ring(CONTEXT, 2, LAYOUT)
    for step in range(2):
        ring.put(step, never, **item(step))
    held = ring.take(0, never)
    with pytest.raises(RingError, match="still read"):
        ring.put(2, never, **item(2))
    assert torch.equal(held["x"], item(0)["x"])


def test_an_item_out_of_order_is_refused():
    ring = Ring(CONTEXT, 4, LAYOUT)
    ring.put(0, never, **item(0))
    with pytest.raises(RingError, match="step 0 arrived where step 1"):
        ring.take(1, never)


def test_waiting_ends_when_the_engine_halts():
    with pytest.raises(Halted):
        Ring(CONTEXT, 1, LAYOUT).take(0, lambda: True)


def test_newest_snapshot_is_read_and_an_overwritten_one_refused():
    snapshots = Snapshots(CONTEXT, 2, torch.zeros(3), readers=2)
    into = torch.empty(3)
    assert snapshots.read(0, 0, into, never) == 0
    for version in (1, 2, 3):
        snapshots.publish(version, torch.full((3,), float(version)))
    assert snapshots.read(0, 1, into, never) == 3
    assert torch.equal(into, torch.full((3,), 3.0))
    snapshots._known[1] = 0
    snapshots.pipes[1][0].recv_bytes()  # a reader that has only heard of version 1, whose slot holds 3 by now
    snapshots.pipes[1][0].recv_bytes()
    snapshots.pipes[1][0].recv_bytes()
    snapshots._known[1] = 1
    with pytest.raises(RingError, match="version 1 was overwritten"):
        snapshots.read(1, 1, into, never)


def test_shared_memory_has_no_name():
    before = set(Path("/dev/shm").iterdir())
    ring = Ring(CONTEXT, 8, {"x": ((1 << 16,), torch.float32)})
    assert ring.buffers["x"].nbytes == 8 * (1 << 16) * 4
    assert set(Path("/dev/shm").iterdir()) <= before
