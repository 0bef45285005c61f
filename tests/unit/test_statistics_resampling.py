"""Bootstrap bounds: exact values by full enumeration, scipy's where it is right, and the textbook studentised bound."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from thinwire_lab.analysis.noninferiority import noninferiority
from thinwire_lab.statistics import resampling
from thinwire_lab.statistics.resampling import Distribution, drawn, enumerated, means_of

THREE, FOUR, FIVE = (0.1, 0.8, 1.6), (-0.2, 0.4, 1.1, 2.0), (0.2, 0.5, 0.9, 1.1, 1.5)
METHODS = ("percentile", "basic", "bca")


def upper(method, values, alpha, resamples=None):
    values = np.array([values], dtype=float)
    resamples = enumerated(values.shape[1]) if resamples is None else resamples
    return getattr(resampling, method)(values, 1.0, alpha, resamples).upper[0]


# 95 and 97.5 % bounds by enumeration of all n^n resamples and the inverse of the distribution function
EXACT = {
    THREE: {"percentile": (1.333333, 1.6), "basic": (1.333333, 1.566667), "bca": (1.333333, 1.6)},
    FOUR: {"percentile": (1.55, 1.60), "basic": (1.525, 1.55), "bca": (1.55, 1.775)},
    FIVE: {"percentile": (1.18, 1.22), "basic": (1.18, 1.24), "bca": (1.18, 1.22)},
}


@pytest.mark.parametrize("values", EXACT)
@pytest.mark.parametrize("method", METHODS)
def test_exact_bounds(values, method):
    found = [upper(method, values, alpha) for alpha in (0.05, 0.025)]
    assert found == pytest.approx(EXACT[values][method], abs=1e-6)


@pytest.mark.parametrize("values", EXACT)
def test_multisets_are_the_n_to_the_n_resamples(values):
    n = len(values)
    plain = np.sort([np.mean(drawn_values) for drawn_values in itertools.product(values, repeat=n)])
    found = means_of(np.array([values]), enumerated(n))
    assert found.atoms.shape[1] == math.comb(2 * n - 1, n)
    assert enumerated(n).weights.sum() == pytest.approx(1.0, abs=1e-12)
    for share in (0.01, 0.05, 0.3, 0.5, 0.77, 0.95, 0.975, 1.0):
        # the smallest of the n^n means whose rank reaches the share
        assert found.quantile(share)[0] == pytest.approx(plain[math.ceil(share * n**n - 1e-9) - 1], abs=1e-12)
    for limit in (-9.0, 0.3331, 0.8001, 9.0):
        assert found.below(limit)[0] == pytest.approx((plain < limit).mean(), abs=1e-12)
        assert found.at_most(limit)[0] == pytest.approx((plain <= limit).mean(), abs=1e-12)


def test_ten_values_are_enumerated_and_eleven_drawn():
    rng = np.random.default_rng(0)
    assert len(resampling.resamples_of(10, 99, rng).weights) == 92378
    sample = resampling.resamples_of(11, 99, rng)
    assert (sample.exact, sample.counts.shape, sample.unseen) == (False, (99, 11), 0.01)
    assert (sample.counts.sum(axis=1) == 11).all()


def test_bca_constants_of_three_values():
    values = np.array([THREE])
    z0, acceleration = resampling.bca_constants(values, means_of(values, enumerated(3)))
    assert (z0[0], acceleration[0]) == pytest.approx((0.04644, 0.007835), abs=5e-6)


def test_ties_with_the_mean_count_half():
    # scipy issue 15883: without this a symmetric sample has a negative z0, and a minimum an infinite one
    for values in ((-1.0, 0.0, 1.0), (1.0, 2.0, 3.0, 4.0), (0.0, 0.0, 1.0, 1.0)):
        sample = np.array([values])
        z0, acceleration = resampling.bca_constants(sample, means_of(sample, enumerated(len(values))))
        assert (z0[0], acceleration[0]) == pytest.approx((0.0, 0.0), abs=1e-12)


def test_skewness_moves_bca_and_not_the_percentile_bound():
    # raphaelvallat/pingouin issue 259: a "bca" without its acceleration
    values = (0.0, 0.1, 0.2, 0.3, 2.5, 0.15, 0.05, 0.4)
    sample = np.array([values])
    _, acceleration = resampling.bca_constants(sample, means_of(sample, enumerated(8)))
    assert acceleration[0] == pytest.approx(stats.skew(values) / (6 * math.sqrt(8)))
    assert acceleration[0] > 0.1
    assert upper("bca", values, 0.05) > upper("percentile", values, 0.05)


def atoms_between(values, first, second):
    atoms = np.unique(np.round(means_of(np.array([values]), enumerated(len(values))).atoms, 9))
    return abs(int(np.searchsorted(atoms, first - 1e-8)) - int(np.searchsorted(atoms, second - 1e-8)))


@pytest.mark.parametrize(("method", "theirs"), [("percentile", "percentile"), ("bca", "BCa")])
def test_scipy_agrees_to_one_atom(method, theirs):
    bound = stats.bootstrap(
        (np.array(FIVE),),
        np.mean,
        method=theirs,
        confidence_level=0.95,
        alternative="less",
        n_resamples=50000,
        rng=np.random.default_rng(1),
    ).confidence_interval.high
    assert atoms_between(FIVE, upper(method, FIVE, 0.05), bound) <= 1


def test_scipy_is_one_atom_off_in_the_basic_bound_of_five_values():
    bound = stats.bootstrap(
        (np.array(FIVE),),
        np.mean,
        method="basic",
        confidence_level=0.95,
        alternative="less",
        n_resamples=100000,
        rng=np.random.default_rng(1),
    ).confidence_interval.high
    # by enumeration P(mean < .50) = .0496 < .05 <= P(mean <= .50), so the quantile is .50 and the bound 1.18
    means = means_of(np.array([FIVE]), enumerated(5))
    assert means.below(0.5 - 1e-9)[0] < 0.05 <= means.at_most(0.5 + 1e-9)[0]
    assert upper("basic", FIVE, 0.05) == pytest.approx(1.18)
    assert bound in (pytest.approx(1.16, abs=1e-9), pytest.approx(1.18, abs=1e-9))


def test_a_one_sided_95_bound_is_the_end_of_a_two_sided_90_interval():
    # scipy pull request 18229: alpha must not be halved for one side
    values = np.random.default_rng(6).normal(size=12)
    options = {"method": "percentile", "n_resamples": 9999}
    two = stats.bootstrap((values,), np.mean, confidence_level=0.9, rng=np.random.default_rng(2), **options)
    ours = upper("percentile", values, 0.05, drawn(12, 9999, np.random.default_rng(3)))
    assert ours == pytest.approx(two.confidence_interval.high, abs=0.02)
    assert (
        ours
        < stats.bootstrap(
            (values,), np.mean, confidence_level=0.95, rng=np.random.default_rng(2), **options
        ).confidence_interval.high
    )


def test_scipy_gives_two_values_an_interval_from_one_to_the_other_and_we_none():
    theirs = stats.bootstrap(
        (np.array([0.2, 0.9]),), np.mean, method="BCa", n_resamples=999, rng=np.random.default_rng(0)
    ).confidence_interval
    assert (theirs.low, theirs.high) == (0.2, 0.9)
    ours = noninferiority([1.0, 1.0], np.exp([0.2, 0.9]), method="bca", rng=np.random.default_rng(0))
    assert (ours.verdict, math.isnan(ours.upper_bound)) == ("infeasible", True)


@pytest.mark.parametrize("method", [*METHODS, "bootstrap_t"])
def test_what_a_bound_adds_to_the_mean_scales_with_the_differences(method):
    # mayer79/confintr issue 2: a standard deviation where a variance was expected
    values = np.random.default_rng(12).normal(size=7)
    plain, wide = upper(method, values, 0.05) - values.mean(), upper(method, 10 * values, 0.05) - 10 * values.mean()
    assert wide == pytest.approx(10 * plain)


def test_textbook_bootstrap_t_of_five_values():
    values = np.array([FIVE])
    quotients = resampling.studentised(values, enumerated(5))
    assert quotients.quantile(0.05)[0] == pytest.approx(-2.069174, abs=1e-6)
    assert upper("bootstrap_t", FIVE, 0.05) == pytest.approx(1.310026, abs=1e-6)


def test_plug_in_and_unbiased_errors_differ_and_only_a_mixture_changes_the_bound():
    values, alpha = np.array([FIVE]), 0.05
    plug_in, unbiased = (resampling.standard_error(values, kind)[0] for kind in ("plug-in", "unbiased"))
    assert plug_in / unbiased == pytest.approx(math.sqrt(4 / 5))
    both = [
        resampling.bootstrap_t(values, 1.0, alpha, enumerated(5), kind).upper[0] for kind in ("plug-in", "unbiased")
    ]
    assert both[0] == pytest.approx(both[1], abs=1e-12)
    # arch 8.0 takes unbiased errors in the quotient and the bootstrap's own outside: its bound of these data is 1.2617
    mixed = 0.84 - resampling.studentised(values, enumerated(5), "unbiased").quantile(alpha)[0] * plug_in
    assert mixed == pytest.approx(0.84 + (both[1] - 0.84) * math.sqrt(4 / 5))
    assert mixed == pytest.approx(1.2617, abs=3e-3)


def test_resamples_without_spread_make_an_infinite_bound():
    # 3^(1-3) = 11.1 % of the resamples draw one value three times; two of the three values lie below the mean
    quotients = resampling.studentised(np.array([[0.0, 0.1, 1.0]]), enumerated(3))
    assert quotients.at_most(-1e300)[0] == pytest.approx(2 / 27)
    assert quotients.at_most(1e300)[0] == pytest.approx(26 / 27)
    assert upper("bootstrap_t", (0.0, 0.1, 1.0), 0.05) == math.inf
    assert math.isfinite(upper("bootstrap_t", (0.0, 0.9, 1.0), 0.05))
    # equal values make more resamples without spread: four pairs can do, these four can't
    result = noninferiority([1.0] * 4, np.exp([0.0, 0.0, 0.0, 1.0]), method="bootstrap-t", rng=np.random.default_rng(0))
    assert (result.verdict, math.isnan(result.upper_bound)) == ("infeasible", True)
    assert "no spread" in result.reason


@pytest.mark.parametrize("method", [*METHODS, "bootstrap_t"])
@pytest.mark.parametrize("sample", ["exact", "drawn"])
def test_many_samples_at_once_are_the_samples_one_by_one(method, sample):
    values = np.random.default_rng(8).normal(size=(7, 6))
    resamples = enumerated(6) if sample == "exact" else drawn(6, 500, np.random.default_rng(1))
    bound = getattr(resampling, method)
    together = bound(values, 0.4, 0.05, resamples)
    for row in range(7):
        alone = bound(values[row : row + 1], 0.4, 0.05, resamples)
        assert alone.upper[0] == pytest.approx(together.upper[row], abs=1e-12)
        assert alone.p_value[0] == pytest.approx(together.p_value[row], abs=1e-12)


@pytest.mark.parametrize("method", [*METHODS, "bootstrap_t"])
def test_p_is_the_level_at_which_the_bound_touches_the_limit(method):
    values = np.random.default_rng(9).normal(size=(1, 8))
    bound = getattr(resampling, method)
    p_value = bound(values, 0.5, 0.05, enumerated(8)).p_value[0]
    assert 0.01 < p_value < 0.5
    assert bound(values, 0.5, p_value * 1.02, enumerated(8)).upper[0] < 0.5
    assert bound(values, 0.5, p_value * 0.98, enumerated(8)).upper[0] >= 0.5


def test_drawn_resamples_come_near_the_enumerated_ones():
    values = np.random.default_rng(4).normal(size=8)
    for method in (*METHODS, "bootstrap_t"):
        exact = upper(method, values, 0.05)
        assert upper(method, values, 0.05, drawn(8, 40000, np.random.default_rng(5))) == pytest.approx(exact, abs=0.03)


def test_a_quantile_of_drawn_atoms_is_an_order_statistic():
    found = Distribution.of(np.array([[3.0, 1.0, 2.0, 4.0]]), np.full(4, 0.25), False)
    assert [found.quantile(share)[0] for share in (0.0, 0.25, 0.26, 0.75, 1.0)] == [1.0, 1.0, 2.0, 3.0, 4.0]
