"""Intervals for the mean of a few runs.

The seed is the unit of replication: each run gives one number, and the interval says how far the mean of other seeds
may lie. Student's t is the default, because bootstrap intervals of a mean are far too short for the handful of seeds
that a training study can afford (one-sided 95 % percentile bounds cover 80 % at three seeds). Bootstrap intervals
stand beside it for comparison. One value has no interval: a width that nothing was measured for would be invented.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import stats

LEVEL = 0.95
"""Two-sided level of every interval in the summaries and verdicts."""


@dataclass(frozen=True)
class Interval:
    """A mean with its two-sided interval; ``sd``, ``lower`` and ``upper`` are None where ``n`` is 1."""

    mean: float
    sd: float | None
    lower: float | None
    upper: float | None
    n: int
    level: float


def _checked(values: Sequence[float]) -> list[float]:
    numbers = [float(value) for value in values]
    if not numbers:
        raise ValueError("an interval needs at least one value, got none")
    if not all(math.isfinite(number) for number in numbers):
        raise ValueError(f"an interval needs finite values, got {numbers}")
    return numbers


def _mean_sd(numbers: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, summed exactly so that the order of the values can't matter."""
    if len(set(numbers)) == 1:
        return numbers[0], 0.0
    mean = math.fsum(numbers) / len(numbers)
    return mean, math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


@lru_cache(maxsize=256)
def _t_quantile(share: float, df: int) -> float:
    return float(stats.t.ppf(share, df))


def t_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Two-sided Student t interval of the mean of independent values.

    Raises ValueError for no value, for a value that is not finite, and for a level outside (0, 1).
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level is {level}, must lie between 0 and 1")
    numbers = _checked(values)
    n = len(numbers)
    mean, sd = _mean_sd(numbers)
    if n == 1:
        return Interval(mean, None, None, None, 1, level)
    half = _t_quantile(0.5 + level / 2, n - 1) * sd / math.sqrt(n)
    return Interval(mean, sd, mean - half, mean + half, n, level)


def bootstrap_interval(
    values: Sequence[float],
    *,
    rng: np.random.Generator,
    method: Literal["percentile", "bca"] = "bca",
    level: float = LEVEL,
    resamples: int = 9999,
) -> Interval:
    """Two-sided bootstrap interval of the mean, by scipy; the same generator state gives the same interval.

    A constant sample has no bootstrap distribution, so its ``lower`` and ``upper`` are None, as for one value. Raises
    ValueError as :func:`t_interval` does.
    """
    plain = t_interval(values, level)
    numbers = _checked(values)
    if plain.n == 1 or len(set(numbers)) == 1:
        return Interval(plain.mean, plain.sd, None, None, plain.n, level)
    result = stats.bootstrap(
        (np.asarray(numbers),),
        np.mean,
        n_resamples=resamples,
        confidence_level=level,
        method="BCa" if method == "bca" else "percentile",
        rng=rng,
    ).confidence_interval
    return Interval(plain.mean, plain.sd, float(result.low), float(result.high), plain.n, level)
