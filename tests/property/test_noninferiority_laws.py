"""Laws of every method: units, order and direction don't matter, and bound, p value and verdict tell the same."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from thinwire_lab.analysis.noninferiority import noninferiority
from thinwire_lab.statistics.limits import METHODS

ROUGH = settings(max_examples=25)
seeds = st.integers(0, 2**32 - 1)


def arms(seed, n, segments=3):
    rng = np.random.default_rng(seed)
    base = rng.uniform(1.0, 3.0, (n, segments))
    return base, base * np.exp(rng.normal(0.004, 0.006, (n, 1)) + rng.normal(0, 0.004, (n, segments)))


def ask(base, ours, method, **options):
    return noninferiority(base, ours, method=method, rng=np.random.default_rng(0), resamples=199, **options)


def same(first, second):
    assert first.verdict == second.verdict
    for name in ("estimate", "upper_bound", "p_value"):
        assert getattr(first, name) == pytest.approx(getattr(second, name), abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("method", METHODS)
@ROUGH
@given(seed=seeds, n=st.integers(2, 7), unit=st.sampled_from([0.5, 8.0, 1024.0]))
def test_the_unit_of_the_values_does_not_matter(method, seed, n, unit):
    base, ours = arms(seed, n)
    same(ask(base, ours, method), ask(unit * base, unit * ours, method))


@pytest.mark.parametrize("method", [method for method in METHODS if method != "crossed"])
@ROUGH
@given(seed=seeds, n=st.integers(2, 7))
def test_the_order_of_the_seeds_does_not_matter(method, seed, n):
    base, ours = arms(seed, n)
    order = np.random.default_rng(seed).permutation(n)
    first, second = ask(base, ours, method), ask(base[order], ours[order], method)
    assert first.estimate == pytest.approx(second.estimate, abs=1e-12)
    # at an atom of a bootstrap distribution rounding may choose a neighbour of the same value
    assert first.upper_bound == pytest.approx(second.upper_bound, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("method", METHODS)
@ROUGH
@given(seed=seeds, n=st.integers(2, 9), alpha=st.sampled_from([0.05, 0.025, 0.1]))
def test_bound_p_value_and_verdict_tell_the_same(method, seed, n, alpha):
    base, ours = arms(seed, n)
    found = ask(base, ours, method, alpha=alpha)
    if found.verdict == "infeasible":
        assert math.isnan(found.upper_bound)
        assert "no" in found.sentence
        return
    assume(abs(found.upper_bound - math.log(1.01)) > 1e-9)
    assert found.upper_bound >= found.estimate - 1e-12 or method == "basic"
    assert (found.verdict == "non-inferior") == (found.upper_bound < math.log(1.01))
    assert (found.p_value <= alpha * (1 + 1e-9)) == (found.verdict == "non-inferior")
    assert 0 < found.p_value <= 1


@pytest.mark.parametrize("method", METHODS)
@ROUGH
@given(seed=seeds, n=st.integers(5, 8))
def test_a_higher_level_never_gives_a_lower_bound(method, seed, n):
    base, ours = arms(seed, n)
    loose, strict = (ask(base, ours, method, alpha=alpha) for alpha in (0.1, 0.05))
    assert strict.upper_bound >= loose.upper_bound - 1e-12


@pytest.mark.parametrize("method", METHODS)
@ROUGH
@given(seed=seeds, n=st.integers(2, 7))
def test_where_higher_is_better_the_roles_turn(method, seed, n):
    base, ours = arms(seed, n, segments=1) if method not in ("two-way-t", "crossed") else arms(seed, n)
    lower = ask(base, ours, method)
    higher = ask(1 / base, 1 / ours, method, margin=1 - 1 / 1.01, lower_is_better=False)
    same(lower, higher)
