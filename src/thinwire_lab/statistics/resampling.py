"""Bootstrap bounds of a mean, of many samples at once, from resamples that are enumerated where there are few.

A resample of ``n`` values is a multiset, and how often each of its values was drawn is all that a mean needs. There
are C(2n - 1, n) of them (10 for three values, 92,378 for ten), each with a multinomial probability, so up to
:data:`ENUMERATED` values the bootstrap distribution is exact and no generator decides anything. Beyond, resamples are
drawn. A quantile is the inverse of the distribution function: the smallest atom whose cumulated probability reaches it.

Samples stand in rows: ``values`` is [replicates, n], and a bound is [replicates].
"""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import stats

from thinwire_lab.statistics.pairs import Floats

ENUMERATED = 10
"""Largest n whose resamples are enumerated."""
_ROUNDING = 1e-12
"""Sums of 92,378 probabilities are off by about 1e-13."""

StandardError = Literal["unbiased", "plug-in"]


@dataclass(frozen=True)
class Bounds:
    """Upper bounds [replicates], infinite where there is none, and p values of "mean >= limit" [replicates]."""

    upper: Floats
    p_value: Floats
    df: Floats | None = None


@dataclass(frozen=True)
class Resamples:
    """``counts`` [resamples, n]: how often each value was drawn; ``weights`` [resamples]: their probabilities."""

    counts: Floats
    weights: Floats
    exact: bool

    @property
    def unseen(self) -> float:
        """The smallest probability that may be reported: what no drawn resample shows is not impossible."""
        return 0.0 if self.exact else 1.0 / (len(self.weights) + 1)


@lru_cache(maxsize=32)
def enumerated(n: int) -> Resamples:
    """All multisets of ``n`` values out of ``n``, with their probabilities under resampling."""
    chosen = np.array(list(itertools.combinations_with_replacement(range(n), n)))
    counts = np.stack([(chosen == index).sum(axis=1) for index in range(n)], axis=1)
    factorials = np.array([math.factorial(count) for count in range(n + 1)], dtype=np.float64)
    weights = factorials[n] / factorials[counts].prod(axis=1) / float(n) ** n
    return Resamples(counts.astype(np.float64), weights, True)


def drawn(n: int, size: int, rng: np.random.Generator) -> Resamples:
    """``size`` resamples from the generator, equally likely."""
    counts = rng.multinomial(n, np.full(n, 1.0 / n), size=size).astype(np.float64)
    return Resamples(counts, np.full(size, 1.0 / size), False)


def resamples_of(n: int, size: int, rng: np.random.Generator) -> Resamples:
    """Enumerated up to :data:`ENUMERATED` values, else drawn."""
    return enumerated(n) if n <= ENUMERATED else drawn(n, size, rng)


@dataclass(frozen=True)
class Distribution:
    """Atoms in ascending order [replicates, resamples], and the probability of being at most each of them."""

    atoms: Floats
    cumulated: Floats

    @classmethod
    def of(cls, values: Floats, weights: Floats, exact: bool) -> "Distribution":
        """Sort ``values`` [replicates, resamples] with their ``weights`` [resamples], all equal unless ``exact``."""
        if not exact:
            size = values.shape[-1]
            return cls(np.sort(values, axis=-1), np.broadcast_to(np.arange(1, size + 1) / size, values.shape))
        order = np.argsort(values, axis=-1, kind="stable")
        return cls(np.take_along_axis(values, order, axis=-1), np.cumsum(weights[order], axis=-1))

    def quantile(self, share: Floats | float) -> Floats:
        """The smallest atom whose cumulated probability reaches ``share`` (one for all, or [replicates])."""
        wanted = np.broadcast_to(np.asarray(share, dtype=np.float64), self.atoms.shape[:1])
        index = (self.cumulated < wanted[:, None] - _ROUNDING).sum(axis=-1)
        return self._at(self.atoms, np.minimum(index, self.atoms.shape[-1] - 1))

    def below(self, limit: Floats | float) -> Floats:
        """Probability of atoms below ``limit``."""
        return self._mass((self.atoms < self._column(limit)).sum(axis=-1))

    def at_most(self, limit: Floats | float) -> Floats:
        """Probability of atoms not above ``limit``."""
        return self._mass((self.atoms <= self._column(limit)).sum(axis=-1))

    @staticmethod
    def _column(limit: Floats | float) -> Floats:
        return np.asarray(limit, dtype=np.float64).reshape(-1, 1)

    @staticmethod
    def _at(table: Floats, index: np.ndarray) -> Floats:
        return np.take_along_axis(table, index[:, None], axis=-1)[:, 0]

    def _mass(self, atoms: np.ndarray) -> Floats:
        reached = self._at(self.cumulated, np.maximum(atoms - 1, 0))
        return np.where(atoms > 0, np.minimum(reached, 1.0), 0.0)


def means_of(values: Floats, resamples: Resamples) -> Distribution:
    """Distribution of the resamples' means."""
    means = values @ resamples.counts.T / values.shape[-1]
    return Distribution.of(means, resamples.weights, resamples.exact)


def _certified(p_value: Floats, n: int, unseen: float) -> Floats:
    """No bootstrap of n pairs is certified beyond 1 - 2**-n, nor by drawn resamples beyond their number."""
    return np.clip(p_value, max(unseen, 2.0**-n), 1.0)


def percentile(values: Floats, limit: float, alpha: float, resamples: Resamples) -> Bounds:
    """The ``1 - alpha`` quantile of the resamples' means (Efron 1979). It never exceeds the sample's largest value."""
    means = means_of(values, resamples)
    p_value = 1.0 - means.below(limit)
    return Bounds(means.quantile(1 - alpha), _certified(p_value, values.shape[-1], resamples.unseen))


def basic(values: Floats, limit: float, alpha: float, resamples: Resamples) -> Bounds:
    """Twice the mean less the ``alpha`` quantile of the resamples' means."""
    means, centre = means_of(values, resamples), values.mean(axis=-1)
    p_value = means.at_most(2 * centre - limit)
    upper = 2 * centre - means.quantile(alpha)
    return Bounds(upper, _certified(p_value, values.shape[-1], resamples.unseen))


def bca_constants(values: Floats, means: Distribution) -> tuple[Floats, Floats]:
    """Bias correction z0 (ties with the mean count half) and jackknife acceleration of a mean (Efron 1987)."""
    n, centre = values.shape[-1], values.mean(axis=-1)
    atom = _ROUNDING * np.maximum(1.0, np.abs(values).max(axis=-1))
    below = means.below(centre - atom)
    tied = means.at_most(centre + atom) - below
    # a jackknife mean less their mean is (mean - value) / (n - 1): the factor cancels in the ratio of moments
    centred = (values - centre[:, None]) / (n - 1)
    squares = (centred**2).sum(axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        acceleration = np.where(squares > 0, (centred**3).sum(axis=-1) / (6.0 * squares**1.5), 0.0)
    return np.asarray(stats.norm.ppf(below + tied / 2), dtype=np.float64), acceleration


def bca(values: Floats, limit: float, alpha: float, resamples: Resamples) -> Bounds:
    """The percentile bound at a level corrected for bias and skewness (Efron 1987)."""
    means = means_of(values, resamples)
    z0, acceleration = bca_constants(values, means)
    shifted = z0 + stats.norm.ppf(1 - alpha)
    upper = means.quantile(stats.norm.cdf(z0 + shifted / (1 - acceleration * shifted)))
    # the level at which the bound would just touch the limit
    below = means.below(limit)
    inside = (below > 0) & (below < 1)
    w = np.asarray(stats.norm.ppf(np.where(inside, below, 0.5))) - z0
    p_value = np.where(inside, stats.norm.sf(w / (1 + acceleration * w) - z0), 1.0 - below)
    return Bounds(upper, _certified(p_value, values.shape[-1], resamples.unseen))


def standard_error(values: Floats, kind: StandardError = "unbiased") -> Floats:
    """Standard error of the mean: *unbiased* divides squares by n - 1, *plug-in* (the bootstrap's own) by n."""
    spread = values.std(axis=-1, ddof=1 if kind == "unbiased" else 0)
    return np.asarray(spread / math.sqrt(values.shape[-1]), dtype=np.float64)


def studentised(values: Floats, resamples: Resamples, kind: StandardError = "unbiased") -> Distribution:
    """Distribution of (resampled mean - mean) / (standard error of the resample), of the named kind.

    A resample that drew one value n times has no spread: its quotient is infinite, with the sign of its numerator.
    """
    n = values.shape[-1]
    centred = values - values.mean(axis=-1, keepdims=True)
    shift = centred @ resamples.counts.T / n
    squares = (centred**2) @ resamples.counts.T / n
    variance = squares - shift**2
    variance = np.where(
        variance > 64 * np.finfo(np.float64).eps * (centred**2).max(axis=-1, keepdims=True), variance, 0
    )
    error = np.sqrt(variance / (n - 1 if kind == "unbiased" else n))
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(shift == 0, 0.0, shift / error)
    return Distribution.of(quotient, resamples.weights, resamples.exact)


def bootstrap_t(
    values: Floats, limit: float, alpha: float, resamples: Resamples, kind: StandardError = "unbiased"
) -> Bounds:
    """The mean less the ``alpha`` quantile of the studentised distribution times the standard error (Efron 1981).

    ``kind`` names the standard error, inside the quotient and outside alike; the bound is then the same for both.
    Mixing them makes it shorter by sqrt((n - 1) / n). Infinite where resamples without spread reach ``alpha``.
    """
    quotients = studentised(values, resamples, kind)
    centre, error = values.mean(axis=-1), standard_error(values, kind)
    with np.errstate(divide="ignore", invalid="ignore"):
        p_value = quotients.at_most((centre - limit) / error)
        upper = centre - quotients.quantile(alpha) * error
    # resamples that draw one value n times have no spread: nothing rarer than their share is resolved
    n = values.shape[-1]
    return Bounds(upper, np.clip(p_value, max(resamples.unseen, (n - 1) * float(n) ** -n), 1.0))
