"""How often does a one-sided bound of a mean cover the truth, by method, with 3 to 20 seed pairs?

Every replicate is one imagined study: ``n`` paired differences whose true mean is known, so whether a bound covers it
can be counted. The bounds come from the very functions that judge real studies, here without their refusals, so that
the runs show what the refusals are for. ``part`` says what is drawn: differences of one value a seed, or of a table
seeds x segments whose segments may have a common effect of their own (then the truth is about text in general).

A run is one batch of replicates; batches of other seeds are independent, so that an interval over seeds shows the
Monte-Carlo error too.
"""

import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from thinwire_lab.config import StudyConfig
from thinwire_lab.recorder import Recorder
from thinwire_lab.statistics import oneway, resampling, twoway
from thinwire_lab.statistics.limits import METHODS, TWO_FACTORS, Method, too_few
from thinwire_lab.statistics.pairs import Floats
from thinwire_lab.statistics.resampling import Bounds

_BATCH = 250
"""Replicates that share their drawn resamples; other batches draw their own."""
_ENUMERATED = 6
"""Largest n whose resamples are enumerated here, 462 of them for each replicate."""
_FLIPPED = 10
"""Largest n whose sign flips are enumerated here."""

Shape = Literal["normal", "right_skew", "left_skew", "heavy"]
Segments = Literal["none", "varied", "dominant"]
SPREADS: dict[Segments, tuple[float, float, float]] = {
    "none": (0.3, 0.0, 1.0),
    "varied": (0.3, 1.5, 1.0),
    "dominant": (0.05, 1.5, 1.0),
}
"""Standard deviations of seeds, segments and residual of a seeds x segments table."""


class Config(StudyConfig):
    """Values of a row."""

    part: Literal["seeds", "crossed"] = Field(description="one value a seed, or a table seeds x segments")
    shape: Shape = Field(default="normal", description="distribution of the differences of `seeds`, variance 1")
    segments: Segments = Field(default="none", description="spreads of the table of `crossed`, see SPREADS")
    pairs: tuple[int, ...] = Field(default=(3, 4, 5, 6, 8, 10, 15, 20), description="numbers of seed pairs")
    columns: int = Field(default=32, ge=2, description="segments of a table")
    replicates: int = Field(default=2000, ge=1, description="imagined studies of a number of pairs, one run")
    resamples: int = Field(default=999, ge=99, description="resamples where they are drawn")
    alpha: float = Field(default=0.05, gt=0, le=0.5, description="one-sided error rate")
    limit: float = Field(default=1.0, gt=0, description="margin for power, in standard deviations above the truth")


def run(config: Config, record: Recorder) -> None:
    """Count coverage for every number of pairs."""
    rng = np.random.default_rng([record.seed, *f"{config.part}/{config.shape}/{config.segments}".encode()])
    for done, n in enumerate(config.pairs):
        if config.part == "seeds":
            tallies, methods = _seeds(config, n, rng), [name for name in METHODS if name not in TWO_FACTORS]
        else:
            tallies, methods = _crossed(config, n, rng), ["paired-t", "two-way-t", "percentile", "crossed"]
        for method, upper in tallies.items():
            _record(record, config, n, method, upper)
        for method in methods:
            record.record(n, "refused", float(bool(too_few(method, n, config.alpha))), method)
        record.progress(done + 1, len(config.pairs))


def _record(record: Recorder, config: Config, n: int, method: str, upper: tuple[Floats, Floats]) -> None:
    """``upper``: bounds and estimates of all replicates, about a true mean of 0."""
    bounds, estimates = upper
    coverage = float((bounds >= 0).mean())
    record.record(n, "coverage", coverage, method)
    record.record(n, "coverage_error", math.sqrt(coverage * (1 - coverage) / len(bounds)), method)
    record.record(n, "power", float((bounds < config.limit).mean()), method)
    finite = np.isfinite(bounds)
    record.record(n, "unbounded", float(1 - finite.mean()), method)
    if finite.any():
        record.record(n, "excess", float(np.median((bounds - estimates)[finite])), method)


def differences(shape: Shape, size: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Draw [replicates, n] with mean 0 and variance 1; *heavy* is Student's t with 3 degrees of freedom."""
    if shape == "normal":
        return rng.standard_normal(size)
    if shape == "heavy":
        return rng.standard_t(3, size) / math.sqrt(3)
    skewed = rng.standard_exponential(size) - 1
    return skewed if shape == "right_skew" else -skewed


def tables(segments: Segments, size: tuple[int, int, int], rng: np.random.Generator) -> Floats:
    """Draw [replicates, seeds, segments] of two crossed normal effects and a residual, mean 0."""
    replicates, seeds, columns = size
    by_seed, by_segment, residual = SPREADS[segments]
    return (
        by_seed * rng.standard_normal((replicates, seeds, 1))
        + by_segment * rng.standard_normal((replicates, 1, columns))
        + residual * rng.standard_normal(size)
    )


def _batches(replicates: int) -> Iterator[int]:
    for start in range(0, replicates, _BATCH):
        yield min(_BATCH, replicates - start)


def _one_factor(values: Floats, config: Config, rng: np.random.Generator) -> dict[Method, Bounds]:
    n, size = values.shape[1], config.resamples
    resamples = resampling.enumerated(n) if n <= _ENUMERATED else resampling.drawn(n, size, rng)
    subsets = None if n <= _FLIPPED else oneway.flips(n, size, rng)
    asked = (config.limit, config.alpha)
    return {
        "paired-t": oneway.paired_t(values, *asked),
        "sign-flip": oneway.sign_flip(values, *asked, subsets),
        "percentile": resampling.percentile(values, *asked, resamples),
        "basic": resampling.basic(values, *asked, resamples),
        "bca": resampling.bca(values, *asked, resamples),
        "bootstrap-t": resampling.bootstrap_t(values, *asked, resamples),
    }


def _gathered(parts: list[tuple[dict[str, Floats], Floats]]) -> dict[str, tuple[Floats, Floats]]:
    estimates = np.concatenate([centre for _, centre in parts])
    return {method: (np.concatenate([bounds[method] for bounds, _ in parts]), estimates) for method in parts[0][0]}


def _seeds(config: Config, n: int, rng: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    parts = []
    for size in _batches(config.replicates):
        values = differences(config.shape, (size, n), rng)
        found = _one_factor(values, config, rng)
        parts.append(({str(method): bounds.upper for method, bounds in found.items()}, values.mean(axis=1)))
    return _gathered(parts)


def _crossed(config: Config, n: int, rng: np.random.Generator) -> dict[str, tuple[Floats, Floats]]:
    """Also by a mistake that is often made: every cell of the table taken for a replicate (*pooled*)."""
    asked, parts = (config.limit, config.alpha), []
    for size in _batches(config.replicates):
        table = tables(config.segments, (size, n, config.columns), rng)
        by_seed = table.mean(axis=2)
        resamples = resampling.enumerated(n) if n <= _ENUMERATED else resampling.drawn(n, config.resamples, rng)
        both = twoway.crossed_resamples(n, config.columns, config.resamples, rng)
        found = {
            "paired-t": oneway.paired_t(by_seed, *asked),
            "two-way-t": twoway.two_way_t(table, *asked),
            "percentile": resampling.percentile(by_seed, *asked, resamples),
            "crossed": twoway.crossed(table, *asked, both),
            "pooled": oneway.paired_t(table.reshape(size, -1), *asked),
        }
        bounds = {name: bound.upper for name, bound in found.items()}
        parts.append((bounds, by_seed.mean(axis=1)))
    return _gathered(parts)
