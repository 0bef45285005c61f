"""Agreement with statsmodels where it is right, and what it says where it isn't."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from thinwire_lab.analysis.noninferiority import holm, noninferiority, power, seeds_needed

GLOBAL = np.array([1.200, 1.215, 1.190, 1.205, 1.210])
LOCAL = GLOBAL * np.array([1.008, 1.010, 1.006, 1.012, 1.004])


def test_paired_t_is_the_upper_half_of_a_paired_tost_on_logs():
    _, _, (statistic, p_value, df) = ttost_paired(LOCAL, GLOBAL, 0.99, 1.01, transform=np.log)
    result = noninferiority(GLOBAL, LOCAL)
    assert (statistic, df) == (pytest.approx(-1.415611, abs=1e-6), 4)
    assert result.p_value == pytest.approx(p_value, rel=1e-9)
    assert (result.df, result.verdict) == (4, "not established")


def test_the_bound_is_the_end_of_a_one_sided_t_interval():
    logs = np.log(LOCAL / GLOBAL)
    _, upper = DescrStatsW(logs).tconfint_mean(alpha=0.05, alternative="smaller")
    assert noninferiority(GLOBAL, LOCAL).upper_bound == pytest.approx(upper, rel=1e-12)


def test_equal_differences_have_p_zero_there_and_no_verdict_here():
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value, *_ = ttost_paired(GLOBAL + 0.25, GLOBAL + 0.25, -1.0, 1.0)
    assert p_value == 0.0
    with pytest.warns(RuntimeWarning, match="Precision loss"):
        theirs = stats.ttest_1samp(np.full(5, 0.5), 1.0, alternative="less")
    assert theirs.pvalue == 0.0
    result = noninferiority(GLOBAL, GLOBAL, margin=0.5)
    assert (result.verdict, math.isnan(result.p_value)) == ("infeasible", True)


def test_power_agrees_with_the_one_sided_t_test():
    # statsmodels issue 9378: 'larger' with effect .5, alpha .05, power .8 takes 26.1375 pairs
    n = TTestPower().solve_power(effect_size=0.5, alpha=0.05, power=0.8, alternative="larger")
    assert n == pytest.approx(26.1375, abs=1e-4)
    assert power(n, 2.0, margin=math.expm1(1.0)) == pytest.approx(0.8, abs=1e-6)
    assert seeds_needed(2.0, margin=math.expm1(1.0)) == 27
    for pairs in (3, 8, 40):
        theirs = TTestPower().power(effect_size=0.7, nobs=pairs, alpha=0.025, alternative="larger")
        ours = power(pairs, 1.0, true_difference=0.3, margin=math.expm1(1.0), alpha=0.025)
        assert ours == pytest.approx(theirs, rel=1e-9)


def test_holm_agrees():
    rng = np.random.default_rng(3)
    results = {
        name: noninferiority(np.ones(6), np.exp(rng.normal(0.5, 0.5, 6)), margin=math.expm1(1.0)) for name in "abcd"
    }
    passed, adjusted, *_ = multipletests([result.p_value for result in results.values()], alpha=0.05, method="holm")
    found = holm(results)
    assert list(found.adjusted_p.values()) == pytest.approx(list(adjusted))
    assert [verdict == "non-inferior" for verdict in found.verdicts.values()] == list(passed)
