"""Non-inferiority: exact values found by full enumeration, refusals, and agreement with scipy.

The exact values are on the scale of differences, so the margin is e^x - 1 and the candidate is e^difference.
"""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from thinwire_lab.analysis.noninferiority import noninferiority, power, seeds_needed
from thinwire_lab.statistics.limits import METHODS, RESAMPLING, pairs_needed, smallest_miss

ONE_WAY = ("paired-t", "sign-flip", "percentile", "basic", "bca", "bootstrap-t")
THREE, FOUR, FIVE = (0.1, 0.8, 1.6), (-0.2, 0.4, 1.1, 2.0), (0.2, 0.5, 0.9, 1.1, 1.5)
LIMIT_ONE = math.expm1(1.0)
GLOBAL = np.array([1.200, 1.215, 1.190, 1.205, 1.210])
LOCAL = GLOBAL * np.array([1.008, 1.010, 1.006, 1.012, 1.004])


def ask(differences, **options):
    differences = np.asarray(differences, dtype=float)
    options = {"margin": LIMIT_ONE, "rng": np.random.default_rng(0), **options}
    return noninferiority(np.ones(differences.shape), np.exp(differences), **options)


@pytest.mark.parametrize(
    ("differences", "mean", "at_95", "at_975", "p_value"),
    [
        (THREE, 0.833333, 2.098660, 2.697816, 0.368784),
        (FOUR, 0.825, 1.938711, 2.331068, 0.368051),
        (FIVE, 0.84, 1.324263, 1.470687, 0.260027),
    ],
)
def test_paired_t_values(differences, mean, at_95, at_975, p_value):
    result = ask(differences)
    assert result.estimate == pytest.approx(mean, abs=1e-6)
    assert result.upper_bound == pytest.approx(at_95, abs=1e-6)
    assert result.p_value == pytest.approx(p_value, abs=1e-6)
    assert (result.n, result.df, result.verdict) == (len(differences), len(differences) - 1, "not established")
    assert ask(differences, alpha=0.025).upper_bound == pytest.approx(at_975, abs=1e-6)


@pytest.mark.parametrize(("differences", "p_value"), [(THREE, 0.375), (FOUR, 0.375), (FIVE, 0.3125)])
def test_sign_flip_p_values(differences, p_value):
    assert ask(differences, method="sign-flip").p_value == p_value


def test_sign_flip_agrees_with_scipy_and_its_bound_inverts_the_test():
    differences = np.random.default_rng(5).normal(0.3, 1.0, size=9)
    for limit in (-0.4, 0.0, 0.5, 1.1):
        ours = noninferiority(np.ones(9), np.exp(differences), margin=math.expm1(max(limit, 0.01)), method="sign-flip")
        theirs = stats.permutation_test(
            (differences - max(limit, 0.01),),
            np.mean,
            permutation_type="samples",
            alternative="less",
            n_resamples=np.inf,
        )
        assert ours.p_value == pytest.approx(theirs.pvalue)
    bound = ours.upper_bound
    for offset, rejected in ((1e-6, True), (-1e-6, False)):
        flipped = [
            np.dot(signs, differences - bound - offset) <= (differences - bound - offset).sum() + 1e-12
            for signs in itertools.product((-1, 1), repeat=9)
        ]
        assert (np.mean(flipped) <= 0.05) == rejected


def test_sampled_bca_agrees_with_scipy_beyond_enumeration():
    differences = np.random.default_rng(2).exponential(size=25)
    ours = ask(differences, method="bca", resamples=20000).upper_bound
    theirs = stats.bootstrap(
        (differences,), np.mean, method="BCa", alternative="less", n_resamples=20000, rng=np.random.default_rng(9)
    ).confidence_interval.high
    assert ours == pytest.approx(theirs, rel=0.02)


def test_random_numbers_come_from_the_passed_generator_alone():
    # google-research/rliable: a seed argument that was ignored in favour of numpy's global state
    before = np.random.get_state()[1].copy()
    for method in METHODS:
        ask(np.random.default_rng(1).normal(size=(24, 3)), method=method, resamples=99)
    assert (np.random.get_state()[1] == before).all()


def test_log_ratio_of_a_worked_example():
    # statsmodels ttost_paired(L, G, .99, 1.01, log): upper t = -1.415611, df 4, p = .114910
    result = noninferiority(GLOBAL, LOCAL)
    assert (result.df, result.verdict) == (4, "not established")
    assert result.p_value == pytest.approx(0.114910, abs=1e-6)
    assert result.estimate_percent == pytest.approx(0.8, abs=1e-3)
    assert "non-inferiority at the 1 % margin is not established" in result.sentence
    assert noninferiority(GLOBAL, LOCAL, margin=0.02).verdict == "non-inferior"


def test_bound_and_p_value_always_tell_the_same():
    rng = np.random.default_rng(4)
    for _ in range(30):
        differences = rng.normal(0.8, 0.5, size=int(rng.integers(5, 9)))
        for method in ONE_WAY:
            result = ask(differences, method=method)
            assert (result.verdict == "non-inferior") == (result.upper_bound < 1.0)
            assert (result.p_value <= 0.05) == (result.verdict == "non-inferior")


def test_higher_is_better_mirrors_lower_is_better():
    lower = noninferiority(GLOBAL, LOCAL, margin=0.02)
    higher = noninferiority(1 / GLOBAL, 1 / LOCAL, margin=1 - 1 / 1.02, lower_is_better=False)
    assert higher.estimate == pytest.approx(lower.estimate)
    assert higher.upper_bound == pytest.approx(lower.upper_bound)
    assert higher.p_value == pytest.approx(lower.p_value)
    assert higher.estimate_percent == pytest.approx(100 * (1 - 1 / 1.008), abs=1e-2)


def test_segments_are_averaged_and_frames_are_paired_by_seed():
    rng = np.random.default_rng(0)
    first, second = rng.uniform(1, 2, (6, 4)), rng.uniform(1, 2, (6, 4))
    plain = noninferiority(first.mean(axis=1), second.mean(axis=1))
    assert noninferiority(first, second) == plain

    def frame(values, order):
        rows = [(seed, segment, values[seed, segment]) for seed in order for segment in range(4)]
        return pd.DataFrame(rows, columns=["seed", "segment", "value"])

    assert noninferiority(frame(first, range(6)), frame(second, reversed(range(6)))) == plain


@pytest.mark.parametrize(
    ("method", "alpha", "first_enough"),
    [
        *((method, 0.05, 5) for method in ("percentile", "basic", "bca", "sign-flip", "crossed")),
        *((method, 0.025, 6) for method in ("percentile", "basic", "bca", "sign-flip", "crossed")),
        ("bootstrap-t", 0.05, 4),
        ("bootstrap-t", 0.01, 5),
    ],
)
def test_a_method_refuses_below_the_pairs_that_its_level_needs(method, alpha, first_enough):
    differences = np.linspace(-1.0, 0.5, first_enough) ** 3
    if method == "crossed":
        differences = differences[:, None] + np.array([0.1, 0.0, -0.1])
    short = ask(differences[1:], method=method, alpha=alpha)
    assert (short.verdict, math.isnan(short.upper_bound)) == ("infeasible", True)
    assert f"it needs {first_enough}" in short.reason
    assert "can't be judged" in short.sentence
    assert pairs_needed(method, alpha) == first_enough
    assert ask(differences, method=method, alpha=alpha).verdict != "infeasible"


def test_every_method_has_a_least_number_of_pairs():
    assert {method: (pairs_needed(method), pairs_needed(method, 0.025)) for method in METHODS} == {
        "paired-t": (2, 2),
        "two-way-t": (2, 2),
        "sign-flip": (5, 6),
        "percentile": (5, 6),
        "basic": (5, 6),
        "bca": (5, 6),
        "bootstrap-t": (4, 4),
        "crossed": (5, 6),
    }


@pytest.mark.parametrize("n", [2, 3, 4, 6])
def test_the_largest_basic_bound_misses_normal_differences_as_often_as_the_largest_value_does(n):
    drawn = np.random.default_rng(n).normal(size=(200000, n))
    missed = float((2 * drawn.mean(axis=1) < drawn.min(axis=1)).mean())
    expected = smallest_miss("basic", n)
    assert expected == 2.0**-n
    assert missed == pytest.approx(expected, abs=4 * math.sqrt(expected / 200000))


@pytest.mark.parametrize("method", METHODS)
def test_segments_with_one_seed_or_without_spread_are_infeasible(method):
    for table, said in (([[0.1, 0.2, 0.3]], "one pair"), ([[0.1, 0.2, 0.3]] * 7, "equal")):
        result = ask(table, method=method)
        assert (result.verdict, math.isnan(result.p_value)) == ("infeasible", True)
        assert said in result.reason


@pytest.mark.parametrize("method", ONE_WAY)
def test_one_pair_or_no_spread_is_infeasible_and_never_p_zero(method):
    for differences, said in (((0.2,), "one pair"), ((0.2,) * 8, "equal")):
        result = ask(differences, method=method)
        assert result.verdict == "infeasible"
        assert said in result.reason
        assert math.isnan(result.p_value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [6, 30])
def test_p_is_never_zero(method, n):
    table = -5 + 0.1 * np.random.default_rng(n).normal(size=(n, 4))
    result = ask(table, method=method, resamples=999)
    assert result.verdict == "non-inferior"
    assert result.p_value > 0
    if method in RESAMPLING or method == "sign-flip":
        assert result.p_value >= (max(smallest_miss(method, n), 1e-3) if n > 20 else smallest_miss(method, n))


def test_the_same_generator_gives_the_same_answer():
    differences = np.random.default_rng(1).normal(size=15)
    for method in ("percentile", "basic", "bca", "bootstrap-t"):
        first, second, other = (
            ask(differences, method=method, rng=np.random.default_rng(seed), resamples=199) for seed in (3, 3, 4)
        )
        assert first == second
        assert first != other


@pytest.mark.parametrize(
    ("baseline", "candidate", "options", "said"),
    [
        ([1.0, 2.0], [1.0, math.nan], {}, "candidate: a value is missing"),
        ([1.0, math.inf], [1.0, 2.0], {}, "baseline: a value is missing or not finite"),
        ([1.0, 0.0], [1.0, 2.0], {}, "baseline: the value 0.0 is not positive"),
        ([1.0, 2.0], [1.0, 2.0, 3.0], {}, "unequal lengths"),
        ([], [], {}, "one-dimensional"),
        *(([1.0, 2.0], [1.0, 2.0], {"method": method}, "needs rng") for method in RESAMPLING),
        ([1.0, 2.0], [1.0, 2.0], {"method": "two-way-t"}, r"1 segment\(s\) can't be cut"),
        ([[1.0, 2.0, 3.0]] * 2, [[1.0, 2.0, 4.0]] * 2, {"method": "two-way-t", "block": 2}, "blocks of 2"),
        ([[1.0, 2.0]] * 2, [[1.0, 2.0]] * 2, {"method": "two-way-t", "block": 2}, "at least two whole"),
        ([1.0, 2.0], [1.0, 2.0], {"resamples": 10}, "at least 99"),
        ([1.0, 2.0], [1.0, 2.0], {"method": "welch"}, "must be one of paired-t"),
        ([1.0, 2.0], [1.0, 2.0], {"margin": 0.0}, "margin"),
        ([1.0, 2.0], [1.0, 2.0], {"margin": 1.0, "lower_is_better": False}, "below 1"),
        ([1.0, 2.0], [1.0, 2.0], {"alpha": 0.95}, "alpha"),
        (list(np.linspace(1, 2, 21)), [1.5] * 21, {"method": "sign-flip"}, "needs rng"),
        (pd.DataFrame({"seed": [0, 0], "segment": [1, 1], "value": [1.0, 1.0]}),) * 2 + ({}, "seed 0 stands twice"),
        (
            pd.DataFrame({"seed": [0], "value": [1.0]}),
            pd.DataFrame({"seed": [1], "value": [1.0]}),
            {},
            "different seeds",
        ),
        (pd.DataFrame({"value": [1.0]}), pd.DataFrame({"value": [1.0]}), {}, "needs the columns seed"),
        (pd.DataFrame({"seed": [0], "value": [1.0]}), [1.0], {}, "both be frames"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(baseline, candidate, options, said):
    with pytest.raises(ValueError, match=said):
        noninferiority(baseline, candidate, **options)


# pairs for 80 % power at alpha .05 and .025, for true differences of 0, .25, .5, .7 and .841 %
POWER_TABLE = {
    0.1: ((2, 3), (2, 3), (3, 3), (3, 4), (5, 6)),
    0.2: ((3, 3), (3, 3), (3, 4), (5, 6), (12, 15)),
    0.3: ((3, 3), (3, 4), (4, 6), (8, 10), (24, 30)),
    0.5: ((4, 5), (5, 6), (8, 10), (19, 24), (63, 80)),
    0.75: ((6, 7), (8, 10), (16, 20), (41, 52), (139, 177)),
    1.0: ((8, 10), (13, 16), (27, 34), (71, 90), (246, 313)),
}


@pytest.mark.parametrize("sd", POWER_TABLE)
def test_seeds_needed_for_80_percent_power(sd):
    margin = math.expm1(0.01)
    found = tuple(
        tuple(seeds_needed(sd / 100, true_difference=true / 100, margin=margin, alpha=alpha) for alpha in (0.05, 0.025))
        for true in (0.0, 0.25, 0.5, 0.7, 0.841)
    )
    assert found == POWER_TABLE[sd]


def test_power_is_the_share_of_studies_that_establish_it():
    rng = np.random.default_rng(11)
    differences = rng.normal(0.002, 0.006, size=(4000, 5))
    errors = differences.std(axis=1, ddof=1) / math.sqrt(5)
    bounds = differences.mean(axis=1) + stats.t.ppf(0.95, 4) * errors
    share = float((bounds < math.log(1.01)).mean())
    assert power(5, 0.006, true_difference=0.002) == pytest.approx(share, abs=0.03)


def test_power_takes_a_margin_below_where_higher_is_better():
    assert power(6, 0.004, margin=0.01, lower_is_better=False) > power(6, 0.004, margin=0.01)
    assert seeds_needed(1.0, margin=1 - 1 / math.e, lower_is_better=False) == seeds_needed(1.0, margin=LIMIT_ONE)


def test_a_true_difference_at_the_margin_is_refused_in_time():
    with pytest.raises(ValueError, match="lies at the margin"):
        seeds_needed(0.5, true_difference=math.log(1.01) - 1e-6)
    for target in (0.0, 1.0):
        with pytest.raises(ValueError, match="target power"):
            seeds_needed(0.5, target=target)


def test_no_number_of_seeds_rescues_a_difference_beyond_the_margin():
    with pytest.raises(ValueError, match="no number of seeds"):
        seeds_needed(0.001, true_difference=0.01)
    with pytest.raises(ValueError, match="two pairs"):
        power(1, 0.01)


def test_the_worked_example_of_the_docs_is_true():
    text = (Path(__file__).parents[2] / "docs" / "noninferiority.md").read_text(encoding="utf-8")
    lines = re.findall(r"^seeds_needed\((.*?)\)\s+# (\d+) pairs", text, re.M)
    assert len(lines) == 3
    assert "`seeds_needed(0.006, true_difference=0.005)` is 11." in text
    assert seeds_needed(0.006, true_difference=0.005) == 11
    published_sd = (0.02095 - 0.00841) * math.sqrt(3) / stats.t.ppf(0.95, 2)
    assert published_sd == pytest.approx(0.0074, abs=5e-5)
    pairs = int(re.search(r"80 % power takes (\d+) pairs", text)[1])
    logs = math.log1p(0.00841), math.log1p(0.02095)
    sd = (logs[1] - logs[0]) * math.sqrt(3) / stats.t.ppf(0.95, 2)
    assert seeds_needed(sd, true_difference=logs[0]) == pairs
    for written, pairs in lines:
        sd, _, rest = written.partition(", true_difference=")
        assert seeds_needed(float(sd), true_difference=float(rest or 0)) == int(pairs)
