"""Is the candidate at most a margin worse than the baseline? Paired, on the log-ratio scale, with few seeds.

Two arms are trained from the same seeds, so that seed ``i`` gives a pair of losses. The question is about
``theta = E[log(candidate / baseline)]``: non-inferiority at margin ``m`` is established when the one-sided upper bound
of ``theta`` lies below ``log(1 + m)``. An interval that reaches beyond the margin establishes nothing: it neither shows
that the candidate is worse nor that it is not. Where higher is better, the same is asked of
``log(baseline / candidate)`` and ``-log(1 - m)``.

Each method can reach its level or says that it can't (:mod:`.limits`).
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from thinwire_lab.statistics import oneway, resampling, twoway
from thinwire_lab.statistics.limits import METHODS, RESAMPLING, TWO_FACTORS, Method, too_few
from thinwire_lab.statistics.pairs import Data, Floats, check_alpha, log_limit, paired, percent_worse

Verdict = Literal["non-inferior", "not established", "infeasible"]


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
class _Asked:
    method: Method
    limit: float
    alpha: float
    rng: np.random.Generator | None
    resamples: int

    def generator(self) -> np.random.Generator:
        if self.rng is None:
            raise ValueError(f"method {self.method!r} resamples and needs rng, a numpy Generator")
        return self.rng


def _two_factors(table: Floats, asked: _Asked) -> resampling.Bounds:
    values = table[None]
    if asked.method == "two-way-t":
        return twoway.two_way_t(values, asked.limit, asked.alpha)
    seeds, segments = table.shape
    crossed = twoway.crossed_resamples(seeds, segments, asked.resamples, asked.generator())
    return twoway.crossed(values, asked.limit, asked.alpha, crossed)


def _one_factor(differences: Floats, asked: _Asked) -> resampling.Bounds:
    values, n = differences[None], len(differences)
    if asked.method == "paired-t":
        return oneway.paired_t(values, asked.limit, asked.alpha)
    if asked.method == "sign-flip":
        if n <= oneway.FLIPPED:
            return oneway.sign_flip(values, asked.limit, asked.alpha)
        if asked.rng is None:
            raise ValueError(f"sign-flip of {n} pairs samples the flips and needs rng, a numpy Generator")
        subsets = oneway.flips(n, asked.resamples, asked.rng)
        return oneway.sign_flip(values, asked.limit, asked.alpha, subsets)
    bound = {
        "percentile": resampling.percentile,
        "basic": resampling.basic,
        "bca": resampling.bca,
        "bootstrap-t": resampling.bootstrap_t,
    }[asked.method]
    return bound(values, asked.limit, asked.alpha, resampling.resamples_of(n, asked.resamples, asked.generator()))


def _infeasible(seed_means: Floats, asked: _Asked) -> str:
    n = len(seed_means)
    if n == 1:
        return "one pair has no spread to judge by; train at least two seeds"
    if np.ptp(seed_means) <= 4 * np.finfo(np.float64).eps * max(1.0, float(np.abs(seed_means).max())):
        return f"all {n} differences are equal, so their spread is not measured"
    return too_few(asked.method, n, asked.alpha)


def _answer(differences: Floats, asked: _Asked) -> tuple[float, float, float | None, str]:
    """Upper bound, p value, degrees of freedom, and why there is no bound where there is none."""
    by_seed = differences if differences.ndim == 1 else differences.mean(axis=1)
    why = _infeasible(by_seed, asked)
    measurable = asked.method == "sign-flip" and "can't reach" in why  # its p value exists all the same
    if why and not measurable:
        return math.nan, math.nan, None, why
    found = _one_factor(differences, asked) if differences.ndim == 1 else _two_factors(differences, asked)
    upper, p_value = float(found.upper[0]), float(found.p_value[0])
    df = None if found.df is None else float(found.df[0])
    if why:
        return math.nan, p_value, None, why
    if not math.isfinite(upper):
        return math.nan, p_value, df, f"{asked.method} has no finite bound here: too many resamples have no spread"
    return upper, p_value, df, ""


def _sentence(
    asked: _Asked, verdict: Verdict, *, shape: tuple[int, ...], estimate: float, bound: float, margin: float
) -> str:
    """One that a reader can quote; ``estimate``, ``bound`` and ``margin`` in percent."""
    level = f"{100 * (1 - asked.alpha):g} %"
    pairs = "one seed pair" if shape[0] == 1 else f"{shape[0]} seed pairs"
    pairs += f" and {shape[1]} segments" if len(shape) == 2 else ""
    if verdict == "infeasible":
        return f"With {pairs} {asked.method} gives no {level} upper bound, so non-inferiority can't be judged."
    finding = "is established" if verdict == "non-inferior" else "is not established"
    side = "worse" if estimate >= 0 else "better"
    end = f"{bound:.3g} % worse" if bound >= 0 else f"{-bound:.3g} % better"
    return (
        f"Over {pairs} the candidate is {abs(estimate):.3g} % {side}, with a one-sided {level} upper bound of {end} "
        f"({asked.method}): non-inferiority at the {margin:g} % margin {finding}."
    )


def _check(alpha: float, method: str, rng: np.random.Generator | None, resamples: int) -> None:
    if method not in METHODS:
        raise ValueError(f"method {method!r} is unknown, must be one of {', '.join(METHODS)}")
    check_alpha(alpha)
    if resamples < 99:
        raise ValueError(f"resamples is {resamples}, must be at least 99")
    if method in RESAMPLING and rng is None:
        raise ValueError(f"method {method!r} resamples and needs rng, a numpy Generator")


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
    block: int = 1,
) -> NonInferiority:
    """Judge non-inferiority from paired positive values, at a relative margin and one-sided level ``1 - alpha``.

    ``baseline`` and ``candidate`` are arrays over seeds paired by position, arrays seeds x segments, or tidy frames
    with the columns seed, segment and value (paired by seed and segment). One-way methods average the segments first
    and speak of this evaluation text. ``two-way-t`` and ``crossed`` treat them as a second factor and speak of text
    like it; their differences are log-ratios of the means of ``block`` adjacent segments, and their ``estimate`` is
    the mean of these. The bootstrap methods need ``rng``, and so does sign-flip beyond 20 pairs; ``resamples`` counts
    what is drawn where enumeration would be too large.

    Raises ValueError for missing, infinite or non-positive values, unequal lengths, a seed that stands twice in a
    frame, different seeds or segments in the arms, an unknown method, a missing ``rng``, and segments that can't be
    cut into at least two whole blocks where the method needs them.
    """
    _check(alpha, method, rng, resamples)
    limit = log_limit(margin, lower_is_better)
    pairs = paired(baseline, candidate)
    differences = pairs.by_block(lower_is_better, block) if method in TWO_FACTORS else pairs.log_ratios(lower_is_better)
    asked = _Asked(method, limit, alpha, rng, resamples)
    estimate = float(differences.mean())
    upper, p_value, df, infeasible = _answer(differences, asked)
    verdict: Verdict = "infeasible" if infeasible else "non-inferior" if upper < limit else "not established"
    relation = "below" if verdict == "non-inferior" else "not below"
    percent = percent_worse(estimate, lower_is_better), percent_worse(upper, lower_is_better)
    shown = {"estimate": percent[0], "bound": percent[1], "margin": 100 * margin}
    return NonInferiority(
        estimate=estimate,
        upper_bound=upper,
        estimate_percent=percent[0],
        upper_bound_percent=percent[1],
        p_value=p_value,
        n=pairs.n,
        df=df,
        method=method,
        margin=margin,
        alpha=alpha,
        verdict=verdict,
        reason=infeasible or f"the upper bound {upper:.6g} is {relation} the limit {limit:.6g}",
        sentence=_sentence(asked, verdict, shape=differences.shape, **shown),
    )
