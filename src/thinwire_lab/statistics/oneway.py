"""Bounds that need no resampling of a distribution: Student's t and the sign-flip test's inversion.

Samples stand in rows, as in :mod:`.resampling`.
"""

import math

import numpy as np
from scipy import stats

from thinwire_lab.statistics.pairs import Floats
from thinwire_lab.statistics.resampling import Bounds, standard_error

FLIPPED = 20
"""Largest n whose sign flips are enumerated: 1,048,576 subsets."""
_ATOM = 1e-15


def t_bound(centre: Floats, error: Floats, df: Floats, limit: float, alpha: float) -> Bounds:
    """Student's t bound of a mean with its standard error; ``df`` may be fractional."""
    upper = centre + stats.t.ppf(1 - alpha, df) * error
    return Bounds(np.asarray(upper), np.asarray(stats.t.cdf((centre - limit) / error, df)), df)


def paired_t(values: Floats, limit: float, alpha: float) -> Bounds:
    """Student's t on the differences [replicates, n], with n - 1 degrees of freedom."""
    df = np.full(values.shape[0], values.shape[1] - 1.0)
    return t_bound(values.mean(axis=-1), standard_error(values), df, limit, alpha)


def flips(n: int, size: int, rng: np.random.Generator) -> Floats:
    """``size`` random subsets of n pairs whose signs are flipped, [subsets, n] of 0 and 1, the empty one left out."""
    chosen = rng.integers(0, 2, size=(size, n)).astype(np.float64)
    return chosen[chosen.any(axis=1)]


def sign_flip(values: Floats, limit: float, alpha: float, subsets: Floats | None = None) -> Bounds:
    """Sign-flip test of mean >= limit, and its inversion; all 2**n flips, or those of ``subsets``.

    Flipping the signs of a subset leaves the sum as small as observed exactly when the subset's own mean is at least
    the limit. So the bound is an order statistic of subset means (Hartigan 1969, typical values), and p counts them.
    The bound is infinite where even the smallest p is above ``alpha``.
    """
    if subsets is None:
        sums, sizes = np.zeros((len(values), 1)), np.zeros(1)
        for column in values.T:
            sums = np.concatenate([sums, sums + column[:, None]], axis=1)
            sizes = np.concatenate([sizes, sizes + 1])
        sums, sizes = sums[:, 1:], sizes[1:]
    else:
        sums, sizes = values @ subsets.T, subsets.sum(axis=1)
    means, total = sums / sizes, sums.shape[1] + 1
    p_value = (1 + np.count_nonzero(means >= limit - _ATOM, axis=1)) / total
    allowed = math.floor(alpha * total * (1 + 1e-12))
    if allowed < 1:
        return Bounds(np.full(len(values), np.inf), p_value)
    place = means.shape[1] - allowed
    return Bounds(np.partition(means, place, axis=1)[:, place], p_value)
