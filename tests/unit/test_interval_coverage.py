"""The simulation of coverage: right draws, the library's own bounds, and the answer that the default rests on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from thinwire_lab.analysis.noninferiority import noninferiority
from thinwire_lab.experiments import interval_coverage as study
from thinwire_lab.statistics import oneway, resampling
from thinwire_lab.tables import METRICS


class Rows(list):
    """Stands for a recorder: keeps what is recorded."""

    seed = 0

    def record(self, step, metric, value, scope="all"):
        assert math.isfinite(value)
        assert metric in METRICS
        self.append(SimpleNamespace(step=step, metric=metric, value=value, scope=scope))

    def progress(self, done, total):
        assert done <= total

    def value(self, metric, scope, step):
        (found,) = (row.value for row in self if (row.metric, row.scope, row.step) == (metric, scope, step))
        return found


def made(**options):
    rows = Rows()
    study.run(
        study.Config(**{"part": "seeds", "pairs": (3, 5, 8), "replicates": 3000, "resamples": 499} | options), rows
    )
    return rows


@pytest.fixture(scope="module")
def normal():
    return made()


@pytest.mark.parametrize("shape", ["normal", "right_skew", "left_skew", "heavy"])
def test_differences_have_mean_zero_and_variance_one(shape):
    values = study.differences(shape, (4000, 100), np.random.default_rng(0))
    assert values.mean() == pytest.approx(0, abs=0.01)
    assert values.var() == pytest.approx(1, rel=0.05)
    skewness = ((values - values.mean()) ** 3).mean()
    assert np.sign(round(skewness)) == {"right_skew": 1, "left_skew": -1}.get(shape, np.sign(round(skewness)))


@pytest.mark.parametrize("segments", study.SPREADS)
def test_tables_have_the_named_spreads(segments):
    values = study.tables(segments, (500, 20, 30), np.random.default_rng(1))
    by_seed, by_segment, residual = study.SPREADS[segments]
    assert values.mean(axis=2).var(axis=1, ddof=1).mean() == pytest.approx(by_seed**2 + residual**2 / 30, rel=0.1)
    assert values.mean(axis=1).var(axis=1, ddof=1).mean() == pytest.approx(by_segment**2 + residual**2 / 20, rel=0.1)


def test_student_covers_and_the_percentile_bound_does_not(normal):
    for n in (3, 5, 8):
        error = math.sqrt(0.95 * 0.05 / 3000)
        assert normal.value("coverage", "paired-t", n) == pytest.approx(0.95, abs=3.5 * error)
    # published simulations at n = 3: percentile .803, BCa .838, basic .803, bootstrap-t .928 (half of it infinite)
    for method, expected in (("percentile", 0.803), ("bca", 0.838), ("basic", 0.803), ("bootstrap-t", 0.928)):
        assert normal.value("coverage", method, 3) == pytest.approx(expected, abs=0.03)
    assert normal.value("unbounded", "bootstrap-t", 3) == pytest.approx(0.5, abs=0.04)
    assert normal.value("unbounded", "sign-flip", 3) == 1
    assert normal.value("coverage", "percentile", 8) == pytest.approx(0.914, abs=0.02)


def test_refusals_stand_beside_what_they_spare(normal):
    for method, refused in (("paired-t", 0), ("percentile", 1), ("sign-flip", 1), ("bootstrap-t", 1)):
        assert normal.value("refused", method, 3) == refused
        assert normal.value("refused", method, 5) == 0


def test_power_is_that_of_the_formula(normal):
    from thinwire_lab.analysis.noninferiority import power

    for n in (5, 8):
        expected = power(n, 1.0, margin=math.expm1(1.0))
        assert normal.value("power", "paired-t", n) == pytest.approx(expected, abs=0.035)


def test_a_tail_towards_worse_is_the_hard_case():
    right, left = (made(shape=shape, pairs=(5,)) for shape in ("right_skew", "left_skew"))
    assert right.value("coverage", "paired-t", 5) == pytest.approx(0.834, abs=0.03)
    assert right.value("coverage", "percentile", 5) < right.value("coverage", "paired-t", 5)
    assert left.value("coverage", "paired-t", 5) > 0.97


def test_segments_need_a_second_factor():
    rows = made(part="crossed", segments="varied", pairs=(5,), replicates=1500, columns=16)
    assert rows.value("coverage", "two-way-t", 5) == pytest.approx(0.95, abs=0.025)
    assert rows.value("coverage", "crossed", 5) == pytest.approx(0.945, abs=0.03)
    for wrong in ("paired-t", "percentile", "pooled"):
        assert rows.value("coverage", wrong, 5) < 0.9
    alike = made(part="crossed", segments="none", pairs=(5,), replicates=1500, columns=16)
    for right in ("paired-t", "two-way-t"):
        assert alike.value("coverage", right, 5) == pytest.approx(0.95, abs=0.025)


@pytest.mark.parametrize("part", ["seeds", "crossed"])
def test_a_run_is_its_seed(part):
    first, second = (made(part=part, pairs=(4, 12), replicates=60, columns=8, resamples=99) for _ in range(2))
    assert first == second
    assert {row.step for row in first} == {4, 12}


def test_the_simulated_bounds_are_those_of_the_library():
    values = study.differences("normal", (1, 6), np.random.default_rng(3))
    found = study._one_factor(values, study.Config(part="seeds"), np.random.default_rng(0))
    assert set(found) == {"paired-t", "sign-flip", "percentile", "basic", "bca", "bootstrap-t"}
    for method, bounds in found.items():
        theirs = noninferiority(np.ones(6), np.exp(values[0]), method=method, rng=np.random.default_rng(0))
        assert bounds.upper[0] == pytest.approx(theirs.upper_bound, abs=1e-9), method


def test_sampled_sign_flips_come_near_the_enumerated_ones():
    values = np.random.default_rng(1).normal(size=(50, 12))
    subsets = oneway.flips(12, 20000, np.random.default_rng(2))
    drawn, whole = (oneway.sign_flip(values, 0.3, 0.05, chosen) for chosen in (subsets, None))
    assert drawn.upper == pytest.approx(whole.upper, abs=0.05)
    assert drawn.p_value == pytest.approx(whole.p_value, abs=0.015)


def test_a_batch_of_replicates_needs_little_memory():
    assert study._BATCH * math.comb(2 * study._ENUMERATED - 1, study._ENUMERATED) < 2e6
    assert study._BATCH * 2**study._FLIPPED < 2e6
    assert resampling.ENUMERATED >= study._ENUMERATED
