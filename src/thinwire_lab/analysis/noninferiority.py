"""Is the candidate at most a margin worse than the baseline? Paired, on the log-ratio scale, with few seeds.

Two arms are trained from the same seeds, so that seed ``i`` gives a pair of losses. The question is about
``theta = E[log(candidate / baseline)]``: non-inferiority at margin ``m`` is established when the one-sided upper bound
of ``theta`` lies below ``log(1 + m)``. An interval that reaches beyond the margin establishes nothing: it neither shows
that the candidate is worse nor that it is not. Where higher is better, the same is asked of
``log(baseline / candidate)`` and ``-log(1 - m)``.

Each method here can reach its level or says that it can't. A percentile or BCa bound never exceeds the largest of the n
differences, and a sign-flip test has only ``2**n`` outcomes; both need ``2**-n <= alpha`` (five pairs at 5 %, six at
2.5 %). Below that they answer "infeasible" instead of a bound that is too low. Segments of the evaluation text aren't
replicates of training: one-way methods average them first. Up to ten pairs the resamples are enumerated and the
bootstrap distribution is exact; beyond, scipy resamples from the generator that is passed.

The module stands alone: numpy, scipy and pandas.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

Floats = NDArray[np.float64]
Method = Literal["paired-t", "sign-flip", "percentile", "bca"]
Verdict = Literal["non-inferior", "not established", "infeasible"]
Data = Sequence[float] | Floats | pd.DataFrame

_ENUMERATED = 10
"""Largest n whose bootstrap distribution is enumerated: 92,378 multisets."""
_FLIPPED = 20
"""Largest n whose sign flips are enumerated: 1,048,576 subsets."""


@dataclass(frozen=True)
class NonInferiority:
    """The answer, on the log-ratio scale, where positive means that the candidate is worse.

    ``estimate`` and ``upper_bound`` have their likeness in percent beside them ("percent worse"). ``upper_bound`` and
    ``p_value`` are NaN where the method has none; ``df`` is None where the method has no degrees of freedom.
    """

    estimate: float
    upper_bound: float
    estimate_percent: float
    upper_bound_percent: float
    p_value: float
    n: int
    df: float | None
    method: str
    margin: float
    alpha: float
    verdict: Verdict
    reason: str
    sentence: str


@dataclass(frozen=True)
class _Question:
    limit: float
    alpha: float
    method: Method
    rng: np.random.Generator | None
    resamples: int


@dataclass(frozen=True)
class _Bound:
    upper: float
    p_value: float
    df: float | None = None
    infeasible: str = ""


def _from_frame(frame: pd.DataFrame, which: str) -> pd.DataFrame:
    """Seeds x segments, from a tidy frame."""
    columns = [name for name in ("seed", "segment", "value") if name in frame.columns]
    if "seed" not in columns or "value" not in columns:
        raise ValueError(f"{which}: a frame needs the columns seed, segment and value, got {list(frame.columns)}")
    tidy = frame[columns] if "segment" in columns else frame[columns].assign(segment=0)
    doubled = list(tidy.loc[tidy.duplicated(["seed", "segment"]), "seed"])
    if doubled:
        raise ValueError(f"{which}: seed {doubled[0]} stands twice with the same segment")
    return tidy.pivot_table(index="seed", columns="segment", values="value", dropna=False, sort=True)


def _as_array(data: Data, which: str) -> Floats:
    array = np.asarray(data, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{which}: must be one-dimensional (seeds) or seeds x segments, got shape {array.shape}")
    return array


def _seed_means(array: Floats) -> Floats:
    return array if array.ndim == 1 else np.asarray(array.mean(axis=1), dtype=np.float64)


def _pairs(baseline: Data, candidate: Data) -> tuple[Floats, Floats]:
    """Seed means of both arms, paired. Raises ValueError for whatever can't be paired or has no logarithm."""
    if isinstance(baseline, pd.DataFrame) != isinstance(candidate, pd.DataFrame):
        raise ValueError("baseline and candidate must both be frames or both be arrays")
    if isinstance(baseline, pd.DataFrame) and isinstance(candidate, pd.DataFrame):
        left, right = _from_frame(baseline, "baseline"), _from_frame(candidate, "candidate")
        if not left.index.equals(right.index):
            raise ValueError(f"the arms have different seeds: {list(left.index)} and {list(right.index)}")
        if not left.columns.equals(right.columns):
            raise ValueError("the arms were scored on different segments")
        first, second = left.to_numpy(dtype=np.float64), right.to_numpy(dtype=np.float64)
    else:
        first, second = _as_array(baseline, "baseline"), _as_array(candidate, "candidate")
    if first.shape != second.shape:
        raise ValueError(f"unequal lengths: baseline has shape {first.shape}, candidate {second.shape}")
    for which, array in (("baseline", first), ("candidate", second)):
        if not np.isfinite(array).all():
            raise ValueError(f"{which}: a value is missing or not finite")
        if (array <= 0).any():
            first_bad = array[array <= 0].flat[0]
            raise ValueError(f"{which}: the value {first_bad} is not positive, a ratio needs positive values")
    return _seed_means(first), _seed_means(second)


def _resample_distribution(differences: Floats) -> tuple[Floats, Floats]:
    """Means of all n**n resamples, ascending, and their probabilities, by enumerating the multisets."""
    n = len(differences)
    chosen = np.array(list(itertools.combinations_with_replacement(range(n), n)))
    counts = np.stack([(chosen == index).sum(axis=1) for index in range(n)], axis=1)
    factorials = np.array([math.factorial(count) for count in range(n + 1)], dtype=np.float64)
    weights = factorials[n] / factorials[counts].prod(axis=1) / float(n) ** n
    means = counts @ differences / n
    order = np.argsort(means, kind="stable")
    return means[order], weights[order]


def _quantile(means: Floats, weights: Floats, share: float) -> float:
    """Inverse of the distribution function: the smallest mean whose cumulated probability reaches ``share``."""
    # sums of 92,378 weights are off by about 1e-13
    index = int(np.searchsorted(np.cumsum(weights), share - 1e-12))
    return float(means[min(index, len(means) - 1)])


def _bca_constants(differences: Floats, means: Floats, weights: Floats) -> tuple[float, float]:
    """Bias correction z0 (ties count half) and acceleration from the jackknife (Efron 1987)."""
    mean, atom = differences.mean(), 1e-12 * max(1.0, float(np.abs(differences).max()))
    below = float(weights[means < mean - atom].sum())
    tied = float(weights[np.abs(means - mean) <= atom].sum())
    jackknife = (differences.sum() - differences) / (len(differences) - 1)
    centred = jackknife.mean() - jackknife
    acceleration = float((centred**3).sum() / (6.0 * (centred**2).sum() ** 1.5))
    return float(stats.norm.ppf(below + tied / 2)), acceleration


def _bootstrap(differences: Floats, asked: _Question) -> _Bound:
    n = len(differences)
    if n <= _ENUMERATED:
        means, weights = _resample_distribution(differences)
        unseen = 0.0
    else:
        sample = stats.bootstrap(
            (differences,), np.mean, n_resamples=asked.resamples, method="percentile", rng=asked.rng
        ).bootstrap_distribution
        means = np.sort(np.asarray(sample, dtype=np.float64))
        weights = np.full(len(means), 1.0 / len(means))
        unseen = 1.0 / (len(means) + 1)
    z0, acceleration = _bca_constants(differences, means, weights) if asked.method == "bca" else (0.0, 0.0)
    shifted = z0 + float(stats.norm.ppf(1 - asked.alpha))
    upper = _quantile(means, weights, float(stats.norm.cdf(z0 + shifted / (1 - acceleration * shifted))))
    # the level at which the bound would just touch the limit; no bound of n pairs is certified beyond 1 - 2**-n
    below = min(max(float(weights[means < asked.limit].sum()), 0.0), 1.0)
    w = float(stats.norm.ppf(below)) - z0
    p_value = float(stats.norm.sf(w / (1 + acceleration * w) - z0)) if math.isfinite(w) else 1.0 - below
    return _Bound(upper, min(1.0, max(p_value, unseen, 2.0**-n)))


def _sign_flip(differences: Floats, asked: _Question) -> _Bound:
    """Sign-flip test of mean >= limit, and its inversion.

    Flipping the signs of a subset leaves the sum as small as observed exactly when the subset's own mean is at least
    the limit. So the bound is an order statistic of subset means (Hartigan's typical values), and p counts them.
    """
    n = len(differences)
    if n <= _FLIPPED:
        sums, sizes = np.zeros(1), np.zeros(1)
        for difference in differences:
            sums, sizes = np.concatenate([sums, sums + difference]), np.concatenate([sizes, sizes + 1])
        sums, sizes = sums[1:], sizes[1:]
    else:
        if asked.rng is None:
            raise ValueError(f"sign-flip of {n} pairs samples the flips and needs rng, a numpy Generator")
        flips = asked.rng.integers(0, 2, size=(asked.resamples, n)).astype(np.float64)
        flips = flips[flips.any(axis=1)]
        sums, sizes = flips @ differences, flips.sum(axis=1)
    means, total = np.sort(sums / sizes)[::-1], len(sums) + 1
    p_value = float(1 + np.count_nonzero(means >= asked.limit - 1e-15)) / total
    allowed = math.floor(asked.alpha * total * (1 + 1e-12))
    return _Bound(float(means[allowed - 1]) if allowed >= 1 else math.nan, p_value)


def _paired_t(differences: Floats, asked: _Question) -> _Bound:
    n = len(differences)
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    mean = float(differences.mean())
    upper = mean + float(stats.t.ppf(1 - asked.alpha, n - 1)) * error
    return _Bound(upper, float(stats.t.cdf((mean - asked.limit) / error, n - 1)), n - 1)


def _too_few(n: int, alpha: float, method: Method) -> str:
    if 2.0**-n <= alpha * (1 + 1e-12):
        return ""
    needed = math.ceil(-math.log2(alpha) - 1e-12)
    why = (
        f"its smallest p value is 2^-{n}"
        if method == "sign-flip"
        else f"its bound can't exceed the largest difference, which covers at most {1 - 2.0**-n:.4g}"
    )
    return f"{method} can't reach a one-sided level of {1 - alpha:g} with {n} pairs ({why}); it needs {needed}"


def _bound(differences: Floats, asked: _Question) -> _Bound:
    n = len(differences)
    if n == 1:
        return _Bound(math.nan, math.nan, infeasible="one pair has no spread to judge by; train at least two seeds")
    if np.ptp(differences) <= 4 * np.finfo(np.float64).eps * max(1.0, float(np.abs(differences).max())):
        return _Bound(math.nan, math.nan, infeasible=f"all {n} differences are equal, so their spread is not measured")
    if asked.method == "paired-t":
        return _paired_t(differences, asked)
    few = _too_few(n, asked.alpha, asked.method)
    if asked.method == "sign-flip":
        found = _sign_flip(differences, asked)
        return _Bound(math.nan, found.p_value, infeasible=few) if few else found
    return _Bound(math.nan, math.nan, infeasible=few) if few else _bootstrap(differences, asked)


def _sentence(asked: _Question, verdict: Verdict, *, n: int, estimate: float, bound: float, margin: float) -> str:
    """One that a reader can quote; ``estimate``, ``bound`` and ``margin`` in percent."""
    level = f"{100 * (1 - asked.alpha):g} %"
    if verdict == "infeasible":
        pairs = "one seed pair" if n == 1 else f"{n} seed pairs"
        return f"With {pairs} {asked.method} gives no {level} upper bound, so non-inferiority can't be judged."
    finding = "is established" if verdict == "non-inferior" else "is not established"
    side = "worse" if estimate >= 0 else "better"
    return (
        f"Over {n} seed pairs the candidate is {abs(estimate):.3g} % {side}, with a one-sided {level} upper bound of "
        f"{bound:.3g} % worse ({asked.method}): non-inferiority at the {margin:g} % margin {finding}."
    )


def _check(margin: float, alpha: float, method: str, lower_is_better: bool, resamples: int) -> None:
    if method not in get_args(Method):
        raise ValueError(f"method {method!r} is unknown, must be one of {', '.join(get_args(Method))}")
    if not 0 < margin < (math.inf if lower_is_better else 1):
        raise ValueError(f"margin {margin} must be positive{'' if lower_is_better else ' and below 1'}")
    if not 0 < alpha <= 0.5:
        raise ValueError(f"alpha {alpha} must lie above 0 and at most at 0.5")
    if resamples < 99:
        raise ValueError(f"resamples is {resamples}, must be at least 99")


def noninferiority(
    baseline: Data,
    candidate: Data,
    *,
    margin: float = 0.01,
    alpha: float = 0.05,
    method: Method = "paired-t",
    lower_is_better: bool = True,
    rng: np.random.Generator | None = None,
    resamples: int = 9999,
) -> NonInferiority:
    """Judge non-inferiority from paired positive values, at a relative margin and one-sided level ``1 - alpha``.

    ``baseline`` and ``candidate`` are arrays over seeds paired by position, arrays seeds x segments (averaged over
    segments), or tidy frames with the columns seed, segment and value (paired by seed). The bootstrap methods need
    ``rng``, and so does sign-flip beyond 20 pairs.

    Raises ValueError for missing, infinite or non-positive values, unequal lengths, a seed that stands twice in a
    frame, different seeds or segments in the arms, an unknown method, and a missing ``rng``.
    """
    _check(margin, alpha, method, lower_is_better, resamples)
    if method in ("percentile", "bca") and rng is None:
        raise ValueError(f"method {method!r} resamples and needs rng, a numpy Generator")
    first, second = _pairs(baseline, candidate)
    differences = np.log(second / first) if lower_is_better else np.log(first / second)
    limit = math.log1p(margin) if lower_is_better else -math.log1p(-margin)
    n, estimate = len(differences), float(differences.mean())
    asked = _Question(limit, alpha, method, rng, resamples)
    bound = _bound(differences, asked)

    def percent(value: float) -> float:
        return 100 * math.expm1(value) if lower_is_better else -100 * math.expm1(-value)

    verdict: Verdict = (
        "infeasible" if bound.infeasible else "non-inferior" if bound.upper < limit else "not established"
    )
    relation = "below" if verdict == "non-inferior" else "not below"
    reason = bound.infeasible or f"the upper bound {bound.upper:.6g} is {relation} the limit {limit:.6g}"
    shown = {"estimate": percent(estimate), "bound": percent(bound.upper), "margin": 100 * margin}
    return NonInferiority(
        estimate=estimate,
        upper_bound=bound.upper,
        estimate_percent=percent(estimate),
        upper_bound_percent=percent(bound.upper),
        p_value=bound.p_value,
        n=n,
        df=bound.df,
        method=method,
        margin=margin,
        alpha=alpha,
        verdict=verdict,
        reason=reason,
        sentence=_sentence(asked, verdict, n=n, **shown),
    )


def power(n: int, sd: float, *, true_difference: float = 0.0, margin: float = 0.01, alpha: float = 0.05) -> float:
    """Probability that ``n`` pairs establish non-inferiority by the paired t bound, from the noncentral t distribution.

    ``sd`` of the paired differences and ``true_difference`` are on the log-ratio scale; lower is better. Raises
    ValueError for fewer than two pairs and for a ``sd`` that is not positive.
    """
    if n < 2 or not sd > 0:
        raise ValueError(f"power needs at least two pairs and a positive sd, got n={n}, sd={sd}")
    _check(margin, alpha, "paired-t", True, 99)
    noncentrality = math.sqrt(n) * (math.log1p(margin) - true_difference) / sd
    return float(stats.nct.sf(stats.t.ppf(1 - alpha, n - 1), n - 1, noncentrality))


def seeds_needed(
    sd: float, *, true_difference: float = 0.0, margin: float = 0.01, alpha: float = 0.05, target: float = 0.8
) -> int:
    """Smallest number of seed pairs with that power; arguments as in :func:`power`.

    Raises ValueError where the true difference is not inside the margin, because then no number of seeds is enough.
    """
    if true_difference >= math.log1p(margin):
        raise ValueError(f"a true difference of {true_difference} lies beyond the margin: no number of seeds is enough")
    if not 0 < target < 1:
        raise ValueError(f"target power {target} must lie between 0 and 1")

    def enough(n: int) -> bool:
        return power(n, sd, true_difference=true_difference, margin=margin, alpha=alpha) >= target

    above = 2
    while not enough(above):
        above *= 2
    below = max(above // 2, 1)
    while above - below > 1:
        middle = (above + below) // 2
        above, below = (middle, below) if enough(middle) else (above, middle)
    return above
