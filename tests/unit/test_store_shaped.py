"""The link in front of a store: its schedule by a clock in hand, and once by the real clock."""

import threading
import time

import pytest

from thinwire.sync import MemoryStore, ShapedStore


class Clock:
    """A clock that moves when somebody sleeps, and each sleep overshoots."""

    def __init__(self, overshoot):
        self.now = 100.0
        self.sleeps = 0
        self.overshoot = overshoot

    def time(self):
        return self.now

    def sleep(self, seconds):
        self.sleeps += 1
        self.now += seconds + self.overshoot


@pytest.mark.parametrize("overshoot", [0.0, 0.0005])
def test_payload_takes_its_bits_over_the_rate_and_overshoot_does_not_add_up(overshoot):
    clock = Clock(overshoot)
    store = ShapedStore(MemoryStore(), 8e6, clock=clock.time, sleep=clock.sleep)  # a megabyte a second
    store.put("a", bytes(2_000_000))
    assert clock.now == pytest.approx(102.0, abs=overshoot + 1e-9)
    assert clock.sleeps == 31  # 64 KiB chunks
    store.get("a")
    assert clock.now == pytest.approx(104.0, abs=2 * overshoot + 1e-9)
    store.names()
    store.delete("a")
    assert clock.now == pytest.approx(104.0, abs=2 * overshoot + 1e-9)


def test_an_idle_link_saves_no_credit():
    clock = Clock(0.0)
    store = ShapedStore(MemoryStore(), 8e6, clock=clock.time, sleep=clock.sleep)
    clock.now += 50
    store.put("a", bytes(1_000_000))
    assert clock.now == pytest.approx(151.0)


def test_real_seconds_and_two_transfers_share_the_link():
    store = ShapedStore(MemoryStore(), 40e6)
    begun = time.monotonic()
    store.put("a", bytes(500_000))
    alone = time.monotonic() - begun
    assert 0.1 <= alone < 0.3
    readers = [threading.Thread(target=store.get, args=("a",)) for _ in range(2)]
    begun = time.monotonic()
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert time.monotonic() - begun >= 0.195


@pytest.mark.parametrize("rate", [0, -1.0, float("nan")])
def test_a_rate_that_is_no_rate_is_refused(rate):
    with pytest.raises(ValueError, match="a rate above 0 is needed"):
        ShapedStore(MemoryStore(), rate)
