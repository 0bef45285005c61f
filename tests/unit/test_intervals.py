"""Intervals of a mean: textbook values, scipy's, and the honest absence of one."""

import math

import numpy as np
import pytest
from scipy import stats

from thinwire_lab.analysis.intervals import bootstrap_interval, t_interval


def test_t_interval_of_a_published_report():
    # raphaelvallat/pingouin issue 119: the right interval is 2.322 to 9.078
    interval = t_interval([5.5, 2.4, 6.8, 9.6, 4.2])
    assert (interval.n, interval.level) == (5, 0.95)
    assert interval.mean == pytest.approx(5.7)
    assert interval.lower == pytest.approx(2.322, abs=5e-4)
    assert interval.upper == pytest.approx(9.078, abs=5e-4)


def test_degrees_of_freedom_are_one_less_than_the_pairs():
    # ACCLAB/dabestr issue 106: t = -2.2653 of 12 pairs has df 11 and the interval -18.566 to -.267
    mean, error = (-18.566 - 0.267) / 2, (18.566 - 0.267) / 2 / stats.t.ppf(0.975, 11)
    assert mean / error == pytest.approx(-2.2653, abs=5e-4)
    shape = np.arange(12) - 5.5
    values = mean + shape / shape.std(ddof=1) * error * math.sqrt(12)
    interval = t_interval(values)
    assert (interval.lower, interval.upper) == pytest.approx((-18.566, -0.267), abs=5e-4)


def test_an_interval_holds_its_mean_at_any_level():
    # JobCollins/fairness_pipeline_dev_toolkit issue 23: shares were taken for percentages
    values = list(range(100))
    for level in (0.5, 0.9, 0.99):
        for method in ("percentile", "bca"):
            interval = bootstrap_interval(values, rng=np.random.default_rng(0), method=method, level=level)
            assert interval.lower < 49.5 < interval.upper
    # raphaelvallat/pingouin issue 259: the level was ignored
    narrow, wide = (t_interval(values, level) for level in (0.5, 0.99))
    assert wide.upper - wide.lower > 3 * (narrow.upper - narrow.lower)


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_t_interval_agrees_with_scipy(level):
    values = np.random.default_rng(3).normal(size=7)
    interval = t_interval(values, level)
    theirs = stats.ttest_1samp(values, 0.0).confidence_interval(level)
    assert (interval.lower, interval.upper) == pytest.approx((theirs.low, theirs.high), rel=1e-12)
    assert interval.sd == pytest.approx(values.std(ddof=1), rel=1e-12)


def test_order_of_values_never_matters():
    values = [1e16, 1.0, -1e16, 3.0]
    assert t_interval(values) == t_interval(values[::-1])
    assert t_interval(values).mean == 1.0


def test_one_value_has_no_interval():
    interval = t_interval([0.25])
    assert (interval.mean, interval.sd, interval.lower, interval.upper) == (0.25, None, None, None)


def test_equal_values_have_an_interval_without_width():
    interval = t_interval([0.1, 0.1, 0.1])
    assert (interval.mean, interval.sd, interval.lower, interval.upper) == (0.1, 0.0, 0.1, 0.1)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_that_have_no_mean_are_refused(values):
    with pytest.raises(ValueError, match="interval needs"):
        t_interval(values)


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_its_range_is_refused(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        t_interval([1.0, 2.0], level)


# the numbers that accompany R's boot package: percentile 28.86 to 84.21, BCa 32.31 to 91.43 (1e6 resamples)
R_SAMPLE = [10, 12, 12.5, 12.5, 13.9, 15, 21, 22, 23, 34, 50, 81, 89, 121, 134, 213]


@pytest.mark.parametrize(("method", "lower", "upper"), [("percentile", 28.86, 84.21), ("bca", 32.31, 91.43)])
def test_bootstrap_intervals_agree_with_r(method, lower, upper):
    interval = bootstrap_interval(R_SAMPLE, rng=np.random.default_rng(0), method=method, resamples=20000)
    assert interval.lower == pytest.approx(lower, abs=0.8)
    assert interval.upper == pytest.approx(upper, abs=0.8)


def test_bca_of_the_first_hundred_numbers():
    interval = bootstrap_interval(list(range(100)), rng=np.random.default_rng(0), resamples=20000)
    assert (interval.lower, interval.upper) == pytest.approx((43.86, 55.15), abs=0.15)


def test_the_same_generator_gives_the_same_bytes():
    first = bootstrap_interval(R_SAMPLE, rng=np.random.default_rng(7), resamples=999)
    assert first == bootstrap_interval(R_SAMPLE, rng=np.random.default_rng(7), resamples=999)
    assert first != bootstrap_interval(R_SAMPLE, rng=np.random.default_rng(8), resamples=999)


@pytest.mark.parametrize("values", [[1.0], [10000.0] * 35])
def test_a_sample_without_spread_has_no_bootstrap_interval(values):
    interval = bootstrap_interval(values, rng=np.random.default_rng(0))
    assert (interval.mean, interval.lower, interval.upper) == (values[0], None, None)
