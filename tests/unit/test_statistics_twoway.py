"""Seeds crossed with segments: mean squares, Satterthwaite, the pigeonhole bootstrap, blocks of text."""

import itertools

import numpy as np
import pytest
from scipy import stats

from thinwire_lab.analysis.noninferiority import noninferiority
from thinwire_lab.statistics import twoway
from thinwire_lab.statistics.resampling import enumerated

TABLE = np.array([[0.3, 0.9, 0.2, 0.6], [0.5, 1.4, 0.1, 0.9], [0.1, 0.8, -0.2, 0.6], [0.4, 1.2, 0.3, 0.8]])


def ask(table, **options):
    table = np.asarray(table, dtype=float)
    return noninferiority(np.ones(table.shape), np.exp(table), **{"margin": 1.0, **options})


def test_mean_squares_of_a_small_table():
    found = twoway.mean_squares(TABLE[None])
    grand, rows, columns = TABLE.mean(), TABLE.mean(axis=1), TABLE.mean(axis=0)
    total = ((TABLE - grand) ** 2).sum()
    by_rows, by_columns = 4 * ((rows - grand) ** 2).sum(), 4 * ((columns - grand) ** 2).sum()
    assert found.seeds[0] == pytest.approx(by_rows / 3)
    assert found.segments[0] == pytest.approx(by_columns / 3)
    assert found.residual[0] == pytest.approx((total - by_rows - by_columns) / 9)


def test_two_way_t_by_hand():
    a, b, e = (float(part[0]) for part in vars(twoway.mean_squares(TABLE[None])).values())
    both = a + b - e
    df = both**2 / (a**2 / 3 + b**2 / 3 + e**2 / 9)
    result = ask(TABLE, method="two-way-t")
    assert result.df == pytest.approx(df)
    assert 3 < result.df < 9
    assert result.n == 4
    assert result.upper_bound == pytest.approx(TABLE.mean() + stats.t.ppf(0.95, df) * np.sqrt(both / 16))
    assert "4 seed pairs and 4 segments" in result.sentence


def test_two_way_t_estimates_both_components():
    rng = np.random.default_rng(0)
    seeds, segments, residual = 0.4, 1.1, 0.7
    shape = (4000, 6, 9)
    tables = (
        seeds * rng.normal(size=(4000, 6, 1))
        + segments * rng.normal(size=(4000, 1, 9))
        + residual * rng.normal(size=shape)
    )
    found = twoway.mean_squares(tables)
    variance = (found.seeds + found.segments - found.residual).mean() / 54
    assert variance == pytest.approx(seeds**2 / 6 + segments**2 / 9 + residual**2 / 54, rel=0.03)
    assert tables.mean(axis=(1, 2)).var() == pytest.approx(variance, rel=0.06)


def test_without_segment_effects_two_way_t_is_the_paired_t_of_seed_means():
    table = TABLE.mean(axis=1, keepdims=True) + np.array([[0.1, -0.1], [-0.1, 0.1], [0.1, -0.1], [-0.1, 0.1]])
    two, one = ask(table, method="two-way-t"), ask(table.mean(axis=1))
    assert (two.df, two.upper_bound) == pytest.approx((one.df, one.upper_bound))


def test_a_two_way_bound_is_never_inside_the_spread_of_either_factor():
    rng = np.random.default_rng(2)
    for _ in range(50):
        table = rng.normal(size=(4, 5)) * rng.uniform(0.1, 2) + rng.normal(size=(1, 5)) * rng.uniform(0, 2)
        found = twoway.mean_squares(table[None])
        result = ask(table, method="two-way-t")
        error = (result.upper_bound - table.mean()) / stats.t.ppf(0.95, result.df)
        assert (
            error**2 * 20 >= max(found.seeds[0], found.segments[0]) * (1 - 1e-9) or found.seeds[0] < found.residual[0]
        )


def test_the_pigeonhole_bootstrap_of_a_small_table_is_exact():
    table = TABLE[:3, :2]
    means = np.sort(
        [
            table[np.ix_(rows, columns)].mean()
            for rows in itertools.product(range(3), repeat=3)
            for columns in itertools.product(range(2), repeat=2)
        ]
    )
    resamples = twoway.crossed_resamples(3, 2, 99, np.random.default_rng(0))
    assert resamples.exact
    for alpha in (0.05, 0.2, 0.5):
        bound = twoway.crossed(table[None], 0.5, alpha, resamples).upper[0]
        assert bound == pytest.approx(means[int(np.ceil((1 - alpha) * len(means) - 1e-9)) - 1])
    p_value = twoway.crossed(table[None], 0.5, 0.05, resamples).p_value[0]
    assert p_value == pytest.approx(max((means >= 0.5).mean(), 1 / 8))


def test_drawn_crossed_resamples_come_near_the_enumerated_ones():
    table = np.random.default_rng(3).normal(size=(1, 5, 4))
    exact = twoway.CrossedResamples(enumerated(5), enumerated(4))
    drawn = twoway.CrossedResamples(*(twoway.drawn(size, 40000, np.random.default_rng(size)) for size in (5, 4)))
    bounds = [twoway.crossed(table, 0.3, 0.05, resamples) for resamples in (exact, drawn)]
    assert bounds[0].upper[0] == pytest.approx(bounds[1].upper[0], abs=0.02)
    assert bounds[0].p_value[0] == pytest.approx(bounds[1].p_value[0], abs=0.01)


def test_one_value_copied_over_all_segments_leaves_the_percentile_bound_of_the_seeds():
    seeds = np.random.default_rng(5).normal(size=6)
    options = {"rng": np.random.default_rng(0), "resamples": 999}
    crossed = ask(np.repeat(seeds[:, None], 3, axis=1), method="crossed", **options)
    percentile = ask(seeds, method="percentile", **options)
    assert crossed.upper_bound == pytest.approx(percentile.upper_bound)


def test_more_copies_of_the_segments_are_no_more_seeds():
    # LARG/jax-aht pull request 108: episodes stacked on the axis of runs
    rng = np.random.default_rng(1)
    base, ours = rng.uniform(1, 2, (6, 4)), rng.uniform(1, 2, (6, 4))
    plain = noninferiority(base, ours)
    copied = noninferiority(np.tile(base, 5), np.tile(ours, 5))
    assert (copied.n, copied.df) == (6, 5)
    assert copied.upper_bound == pytest.approx(plain.upper_bound)


def test_seeds_stand_in_rows():
    # google-research/rliable issue 20: runs x tasks, not tasks x runs
    rng = np.random.default_rng(2)
    base, ours = rng.uniform(1, 2, (7, 4)), rng.uniform(1, 2, (7, 4))
    assert noninferiority(base, ours).n == 7
    assert noninferiority(base.T, ours.T).n == 4


def test_blocks_average_neighbouring_segments():
    rng = np.random.default_rng(7)
    base, ours = rng.uniform(1, 2, (5, 8)), rng.uniform(1, 2, (5, 8))
    cut = [arm.reshape(5, 4, 2).mean(axis=2) for arm in (base, ours)]
    assert noninferiority(base, ours, method="two-way-t", block=2) == noninferiority(*cut, method="two-way-t")


def test_correlated_segments_need_blocks():
    # segments that follow each other resemble each other: alone they pretend to more text than there is
    rng = np.random.default_rng(11)
    walk = np.zeros((1, 64))
    for place in range(1, 64):
        walk[0, place] = 0.9 * walk[0, place - 1] + rng.normal()
    table = walk + 0.05 * rng.normal(size=(6, 64)) + 0.01 * rng.normal(size=(6, 1))
    single, blocks = (ask(0.1 * table, method="two-way-t", block=block) for block in (1, 16))
    assert blocks.upper_bound - blocks.estimate > 1.5 * (single.upper_bound - single.estimate)
