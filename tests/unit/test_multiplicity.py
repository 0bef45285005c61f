"""Several data sets by a rule chosen before, superiority after non-inferiority, and three ways to average."""

import math
from dataclasses import replace

import numpy as np
import pytest

from thinwire_lab.analysis.noninferiority import (
    co_primary,
    fixed_sequence,
    holm,
    noninferiority,
    sensitivity,
    superiority,
)

PLAIN = noninferiority([1.0] * 5, np.exp([0.001, 0.002, 0.0, 0.001, 0.0015]))


def result(p_value):
    verdict = "infeasible" if math.isnan(p_value) else "non-inferior" if p_value <= 0.05 else "not established"
    return replace(PLAIN, p_value=p_value, verdict=verdict)


def judged(rule, **p_values):
    found = rule({name: result(p_value) for name, p_value in p_values.items()})
    return [name for name, verdict in found.verdicts.items() if verdict == "non-inferior"], found


def test_a_fixed_sequence_stops_at_the_first_failure():
    assert judged(fixed_sequence, main=0.04, second=0.03)[0] == ["main", "second"]
    assert judged(fixed_sequence, main=0.06, second=0.001)[0] == []
    passed, found = judged(fixed_sequence, main=0.01, second=0.2, third=0.001)
    assert passed == ["main"]
    assert found.adjusted_p == {"main": 0.01, "second": 0.2, "third": 0.2}
    assert "established on main (one-sided alpha 0.05)" in found.sentence


def test_co_primary_is_all_or_none():
    assert judged(co_primary, main=0.04, second=0.05)[0] == ["main", "second"]
    passed, found = judged(co_primary, main=0.0001, second=0.051)
    assert passed == []
    assert set(found.adjusted_p.values()) == {0.051}
    assert "not established on any" in found.sentence


def test_holm_pays_for_the_choice():
    assert judged(holm, main=0.06, second=0.02)[0] == ["second"]
    assert judged(holm, main=0.04, second=0.03)[0] == []
    assert judged(holm, main=0.04, second=0.02)[0] == ["main", "second"]
    assert judged(holm, main=0.04, second=0.02)[1].adjusted_p == pytest.approx({"main": 0.04, "second": 0.04})


@pytest.mark.parametrize("rule", [fixed_sequence, co_primary, holm])
def test_an_infeasible_bound_establishes_nothing(rule):
    passed, found = judged(rule, main=math.nan)
    assert (passed, found.adjusted_p) == ([], {"main": 1.0})


@pytest.mark.parametrize("rule", [fixed_sequence, co_primary, holm])
def test_a_family_has_members_of_one_level(rule):
    with pytest.raises(ValueError, match="at least one data set"):
        rule({})
    with pytest.raises(ValueError, match="one level"):
        rule({"a": PLAIN, "b": replace(PLAIN, alpha=0.025)})


def test_false_claims_stay_below_alpha():
    # both data sets exactly at the margin: any claim is false
    rng = np.random.default_rng(5)
    claims = dict.fromkeys((fixed_sequence, co_primary, holm), 0)
    for _ in range(600):
        pair = {name: noninferiority(np.ones(6), 1.01 * np.exp(rng.normal(0, 0.004, 6))) for name in ("main", "second")}
        for rule in claims:
            claims[rule] += "non-inferior" in rule(pair).verdicts.values()
    assert 10 <= claims[fixed_sequence] <= 50
    assert claims[co_primary] <= 10
    assert claims[holm] <= 50


def test_superiority_is_asked_after_noninferiority_on_the_same_bound():
    better = noninferiority([1.0] * 5, np.exp([-0.004, -0.003, -0.005, -0.004, -0.0035]))
    assert (better.verdict, superiority(better).verdict) == ("non-inferior", "superior")
    assert "% better" in better.sentence
    assert (PLAIN.verdict, superiority(PLAIN).verdict) == ("non-inferior", "not established")
    worse = noninferiority([1.0] * 5, np.exp([0.02, 0.03, 0.025, 0.02, 0.024]))
    assert (worse.verdict, superiority(worse).verdict) == ("not established", "not asked")


def test_three_averages_of_one_comparison():
    found = sensitivity([1.0, 1.2, 2.0], [1.03, 1.21, 2.01])
    assert found.n == 3
    assert found.ratio_of_means.estimate_percent == pytest.approx(1.190476, abs=1e-6)
    assert found.mean_of_ratios.estimate_percent == pytest.approx(1.444444, abs=1e-6)
    assert found.geometric.estimate_percent == pytest.approx(1.438418, abs=1e-6)
    plain = noninferiority([1.0, 1.2, 2.0], [1.03, 1.21, 2.01])
    assert found.geometric.upper_bound_percent == pytest.approx(plain.upper_bound_percent)


def test_fieller_bound_inverts_the_t_test_of_the_difference():
    rng = np.random.default_rng(1)
    base = rng.uniform(1, 2, 8)
    ours = base * rng.normal(1.01, 0.01, 8)
    bound = 1 + sensitivity(base, ours).ratio_of_means.upper_bound_percent / 100
    at_bound = noninferiority(np.ones(8), np.exp(ours - bound * base), margin=0.5)
    assert at_bound.upper_bound == pytest.approx(0.0, abs=1e-12)


def test_averages_agree_where_seeds_are_alike_and_turn_with_the_direction():
    base, ours = np.array([1.0, 1.001, 0.999, 1.0]), np.array([1.010, 1.012, 1.008, 1.011])
    found = sensitivity(base, ours)
    readings = [found.geometric, found.ratio_of_means, found.mean_of_ratios]
    for name in ("estimate_percent", "upper_bound_percent"):
        values = [getattr(reading, name) for reading in readings]
        assert max(values) - min(values) < 0.01
    turned = sensitivity(base, base**2 / ours, lower_is_better=False)
    for reading in (turned.geometric, turned.ratio_of_means, turned.mean_of_ratios):
        assert reading.estimate_percent == pytest.approx(1.0, abs=0.05)
        assert reading.upper_bound_percent > reading.estimate_percent


def test_one_pair_has_estimates_and_no_bounds():
    found = sensitivity([1.0], [1.02])
    for reading in (found.geometric, found.ratio_of_means, found.mean_of_ratios):
        assert reading.estimate_percent == pytest.approx(2.0)
        assert math.isnan(reading.upper_bound_percent)
