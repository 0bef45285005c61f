"""Measured memory: what a process touches is seen, and the library's account is near it."""

import os
import time

import pytest
import torch

from thinwire.local import TrainingPlan, memory_ledger
from thinwire.models import ByteTransformerConfig
from thinwire.spawn import run_workers
from thinwire_lab.experiments.local_learning_memory import RETURNING, PeakSampler, ZeroBatches, net_peak, pss_of


def _hold(_rank, amount):
    held = torch.ones(amount, dtype=torch.uint8)
    time.sleep(0.5)
    return int(held[-1])


def test_peak_memory_sees_what_a_process_touches():
    small, large = 1 << 20, 65 << 20
    peaks = []
    for amount in (small, large):
        with PeakSampler() as sampler:
            run_workers(_hold, (amount,), workers=1, threads=1)
        assert sampler.samples > 3
        peaks.append(sampler)
    rise = peaks[1].peak["Pss_Anon"] - peaks[0].peak["Pss_Anon"]
    assert 60 << 20 < rise < 70 << 20
    assert 60 << 20 < peaks[1].in_use - peaks[0].in_use < 70 << 20
    assert pss_of(2**22 + 1) == dict.fromkeys(("Pss", "Pss_Anon", "Pss_Shmem"), 0)


@pytest.mark.slow
def test_the_account_of_bytes_is_near_what_is_in_use():
    """A middle-sized model, of which scratch memory of kernels is more than of the study's, which is held to 5 %."""
    model = ByteTransformerConfig(blocks=8, width=64, context=128)
    plan = TrainingPlan(model=model, steps=3, seed=0, stages=2, staleness=0)
    in_use = net_peak("rgc_async", plan, ZeroBatches(16, 129), returning=True).net_each
    assert sum(memory_ledger("rgc_async", plan, 16).values()) == pytest.approx(in_use, rel=0.1)
    assert not set(RETURNING) & set(os.environ)
