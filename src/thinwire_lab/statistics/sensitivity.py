"""Does the answer hang on how "relative difference" is averaged? The three usual ways, side by side.

A geometric mean of ratios weighs every seed alike and is the primary estimand. A ratio of means lets seeds with large
values count more; a mean of ratios is pulled up by every ratio that is far from 1. Where they differ, the seeds differ
much, and that should be said. For G = (1, 1.2, 2) and L = (1.03, 1.21, 2.01) they are 1.438, 1.190 and 1.444 %.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy import stats

from thinwire_lab.statistics.pairs import Data, Floats, check_alpha, paired, percent_worse


@dataclass(frozen=True)
class Reading:
    """One way of averaging: percent worse, and its one-sided t bound (NaN where there is none)."""

    estimate_percent: float
    upper_bound_percent: float


@dataclass(frozen=True)
class Sensitivity:
    """The three readings of one comparison, over ``n`` seed pairs."""

    geometric: Reading
    ratio_of_means: Reading
    mean_of_ratios: Reading
    n: int


def _upper(values: Floats, alpha: float) -> float:
    n = len(values)
    if n < 2:
        return math.nan
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return float(values.mean()) + float(stats.t.ppf(1 - alpha, n - 1)) * error


def _fieller(baseline: Floats, candidate: Floats, alpha: float, upper: bool) -> float:
    """One-sided bound of mean(candidate) / mean(baseline), paired (Fieller 1954).

    The bound is the ratio r at which a one-sided t test of mean(candidate - r baseline) = 0 just doesn't reject. NaN
    where the baseline's mean is not told from zero.
    """
    n = len(baseline)
    if n < 2:
        return math.nan
    t = float(stats.t.ppf(1 - alpha, n - 1)) / math.sqrt(n)
    covariance = np.cov(baseline, candidate, ddof=1)
    first, second = float(baseline.mean()), float(candidate.mean())
    a = first**2 - t**2 * covariance[0, 0]
    b = first * second - t**2 * covariance[0, 1]
    c = second**2 - t**2 * covariance[1, 1]
    if a <= 0 or b**2 < a * c:
        return math.nan
    return float((b + (1 if upper else -1) * math.sqrt(b**2 - a * c)) / a)


def sensitivity(baseline: Data, candidate: Data, *, alpha: float = 0.05, lower_is_better: bool = True) -> Sensitivity:
    """Relative difference of paired arms by geometric mean, ratio of means and mean of ratios, in percent worse.

    Data are as in ``noninferiority``; segments are averaged first. Bounds are one-sided at ``1 - alpha``: by paired t
    on log-ratios and on ratios, and by Fieller's theorem for the ratio of means. Raises ValueError as there.
    """
    check_alpha(alpha)
    pairs = paired(baseline, candidate)
    base, ours = pairs.baseline.mean(axis=1), pairs.candidate.mean(axis=1)
    logs = pairs.log_ratios(lower_is_better)
    sign = 1.0 if lower_is_better else -1.0
    ratios = sign * (ours / base - 1)
    of_means = sign * (float(ours.mean()) / float(base.mean()) - 1)
    bound = sign * (_fieller(base, ours, alpha, upper=lower_is_better) - 1)
    return Sensitivity(
        geometric=Reading(
            percent_worse(float(logs.mean()), lower_is_better), percent_worse(_upper(logs, alpha), lower_is_better)
        ),
        ratio_of_means=Reading(100 * of_means, 100 * bound),
        mean_of_ratios=Reading(100 * float(ratios.mean()), 100 * _upper(ratios, alpha)),
        n=pairs.n,
    )
