"""How many seeds? Power of the paired t bound, exactly, from the noncentral t distribution.

The test statistic of ``n`` differences with standard deviation ``sd`` and true mean ``true_difference`` is noncentral t
with ``n - 1`` degrees of freedom and noncentrality ``sqrt(n) (limit - true_difference) / sd``. All arguments are on the
log-ratio scale, where positive is worse and 0.01 is about 1 %.
"""

import math

from scipy import stats

from thinwire_lab.statistics.pairs import check_alpha, log_limit

_MOST = 1 << 20


def power(
    n: float,
    sd: float,
    *,
    true_difference: float = 0.0,
    margin: float = 0.01,
    alpha: float = 0.05,
    lower_is_better: bool = True,
) -> float:
    """Probability that ``n`` pairs establish non-inferiority by the paired t bound.

    ``sd`` of the paired differences and ``true_difference`` are on the log-ratio scale. Raises ValueError for fewer
    than two pairs, for a ``sd`` that is not positive and for a bad margin or ``alpha``.
    """
    if not n >= 2 or not 0 < sd < math.inf:
        raise ValueError(f"power needs at least two pairs and a positive sd, got n={n}, sd={sd}")
    check_alpha(alpha)
    noncentrality = math.sqrt(n) * (log_limit(margin, lower_is_better) - true_difference) / sd
    return float(stats.nct.sf(stats.t.ppf(1 - alpha, n - 1), n - 1, noncentrality))


def seeds_needed(
    sd: float,
    *,
    true_difference: float = 0.0,
    margin: float = 0.01,
    alpha: float = 0.05,
    target: float = 0.8,
    lower_is_better: bool = True,
) -> int:
    """Smallest number of seed pairs with that power; arguments as in :func:`power`.

    Raises ValueError where the true difference is not inside the margin, because then no number of seeds is enough,
    and where it is so close to the margin that over a million pairs would be needed.
    """
    if true_difference >= log_limit(margin, lower_is_better):
        raise ValueError(f"a true difference of {true_difference} lies beyond the margin: no number of seeds is enough")
    if not 0 < target < 1:
        raise ValueError(f"target power {target} must lie between 0 and 1")

    def enough(n: int) -> bool:
        reached = power(
            n, sd, true_difference=true_difference, margin=margin, alpha=alpha, lower_is_better=lower_is_better
        )
        return reached >= target

    above = 2
    while not enough(above):
        above *= 2
        if above > _MOST:
            raise ValueError(f"over {_MOST} pairs would be needed: the true difference lies at the margin")
    below = max(above // 2, 1)
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if enough(middle) else (above, middle)
    return above
