"""Seeds crossed with segments: bounds for seeds like these *and* text like this.

Every seed pair is scored on the same segments, so the factors are crossed, not nested: a segment that is hard for one
pair is hard for all, and averaging over more seeds doesn't average that away. A bound over seeds alone speaks of this
evaluation text; a bound over both speaks of text in general. ``values`` is [replicates, seeds, segments].
"""

from dataclasses import dataclass

import numpy as np

from thinwire_lab.statistics.oneway import t_bound
from thinwire_lab.statistics.pairs import Floats
from thinwire_lab.statistics.resampling import Bounds, Distribution, Resamples, drawn, enumerated

_CROSSED = 200_000
"""Most pairs of enumerated resamples (of seeds, of segments) that are formed."""
_MEMORY = 1 << 22
"""Numbers held at once when resamples of many replicates are formed."""


@dataclass(frozen=True)
class MeanSquares:
    """Mean squares of a two-way table with one value a cell, each [replicates]."""

    seeds: Floats
    segments: Floats
    residual: Floats


def mean_squares(values: Floats) -> MeanSquares:
    """Analysis of variance of [replicates, seeds, segments] (two crossed random factors, no replication)."""
    _, seeds, segments = values.shape
    grand = values.mean(axis=(1, 2), keepdims=True)
    rows = values.mean(axis=2, keepdims=True) - grand
    columns = values.mean(axis=1, keepdims=True) - grand
    residual = values - grand - rows - columns
    return MeanSquares(
        segments * (rows**2).sum(axis=(1, 2)) / (seeds - 1),
        seeds * (columns**2).sum(axis=(1, 2)) / (segments - 1),
        (residual**2).sum(axis=(1, 2)) / ((seeds - 1) * (segments - 1)),
    )


def two_way_t(values: Floats, limit: float, alpha: float) -> Bounds:
    """Student's t on the grand mean, with the variance of both factors and Satterthwaite's degrees of freedom (1946).

    The variance of the mean is (MS seeds + MS segments - MS residual) / (seeds x segments). Where a factor's mean
    square is no larger than the residual's, its component is estimated as zero and the other factor's mean square
    stands alone, with its own degrees of freedom, so the variance is never below either factor's own.
    """
    _, seeds, segments = values.shape
    found = mean_squares(values)
    a, b, e = found.seeds, found.segments, found.residual
    free = np.array([seeds - 1.0, segments - 1.0, (seeds - 1.0) * (segments - 1.0)])
    both = a + b - e
    with np.errstate(divide="ignore", invalid="ignore"):
        satterthwaite = both**2 / (a**2 / free[0] + b**2 / free[1] + e**2 / free[2])
    seeds_alone = b <= e
    segments_alone = (a <= e) & ~seeds_alone
    total = np.where(seeds_alone, a, np.where(segments_alone, b, both))
    df = np.where(seeds_alone, free[0], np.where(segments_alone, free[1], satterthwaite))
    error = np.sqrt(total / (seeds * segments))
    with np.errstate(divide="ignore", invalid="ignore"):
        return t_bound(values.mean(axis=(1, 2)), error, df, limit, alpha)


@dataclass(frozen=True)
class CrossedResamples:
    """Resamples of seeds and of segments: every pair of them where both are enumerated, else drawn together."""

    seeds: Resamples
    segments: Resamples

    @property
    def exact(self) -> bool:
        """Whether all pairs of resamples are formed."""
        return self.seeds.exact and self.segments.exact


def _multisets(n: int, most: int) -> int:
    count = 1
    for index in range(1, n):
        count = count * (n + index) // index
        if count > most:
            break
    return count


def crossed_resamples(seeds: int, segments: int, size: int, rng: np.random.Generator) -> CrossedResamples:
    """All pairs of resamples where they are few, else ``size`` pairs from the generator."""
    if _multisets(seeds, _CROSSED) * _multisets(segments, _CROSSED) <= _CROSSED:
        return CrossedResamples(enumerated(seeds), enumerated(segments))
    return CrossedResamples(drawn(seeds, size, rng), drawn(segments, size, rng))


def _means(values: Floats, resamples: CrossedResamples) -> Floats:
    """Mean of every resample of every replicate, [replicates, resamples]."""
    rows, columns = resamples.seeds.counts, resamples.segments.counts
    scale = values.shape[1] * values.shape[2]
    if resamples.exact:
        return np.stack([(rows @ table @ columns.T).ravel() / scale for table in values])
    step = max(1, _MEMORY // (len(rows) * values.shape[2]))
    parts = []
    for start in range(0, len(values), step):
        by_segment = np.matmul(rows, values[start : start + step])  # [part, resamples, segments]
        parts.append(np.einsum("rbk,bk->rb", by_segment, columns) / scale)
    return np.concatenate(parts)


def crossed(values: Floats, limit: float, alpha: float, resamples: CrossedResamples) -> Bounds:
    """Pigeonhole bootstrap: seeds and segments are resampled independently, and the bound is a percentile.

    Owen 2007 (Annals of Applied Statistics 1, 386); Owen and Eckles 2012 (arXiv 1106.2125): mildly conservative, and
    no resampling of crossed factors is exact.
    """
    if resamples.exact:
        weights = np.outer(resamples.seeds.weights, resamples.segments.weights).ravel()
    else:
        weights = resamples.seeds.weights
    means = Distribution.of(_means(values, resamples), weights, resamples.exact)
    smallest = max(resamples.seeds.unseen, 2.0 ** -values.shape[1])
    return Bounds(means.quantile(1 - alpha), np.clip(1.0 - means.below(limit), smallest, 1.0))
