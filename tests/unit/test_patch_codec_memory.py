"""The measure of extra memory sees a temporary that is gone at the end, and doesn't see what was there before."""

import numpy as np
import torch

from thinwire.patch import diff
from thinwire_lab.experiments.patch_codec_memory import MIB, grown
from thinwire_lab.experiments.patch_codec_rivals import Step

SLACK = MIB
"""The kernel counts pages by batches in each processor."""


def touched(mebibytes):
    return np.ones(mebibytes * MIB, dtype=np.uint8)


def test_a_temporary_that_is_freed_again_counts():
    _, peak = grown(lambda: touched(48).size)
    assert 48 * MIB - SLACK < peak < 56 * MIB


def test_what_is_held_at_the_end_counts_and_what_was_held_before_does_not():
    before = touched(64)
    held, peak = grown(lambda: touched(24))
    assert 24 * MIB - SLACK < peak < 32 * MIB
    assert before.nbytes + held.nbytes == 88 * MIB


def test_two_in_a_row_are_not_added():
    def work():
        touched(24)
        touched(24)

    work()
    _, peak = grown(work)
    assert 24 * MIB - SLACK < peak < 32 * MIB


def test_comparing_takes_no_full_size_temporary():
    base = {"w": torch.zeros(32 * MIB, dtype=torch.int16)}
    target = {"w": base["w"].clone()}
    target["w"][::4096] = 1
    step = Step.of(base, target, 1)
    diff(base, target, threads=1)
    _, peak = grown(step.patch)
    assert peak < 8 * MIB
