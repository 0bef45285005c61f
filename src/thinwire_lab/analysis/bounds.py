"""One-sided bounds of paired comparisons by several methods, beside the verdict that rests on one of them.

``configs/claims.yaml`` lists the comparisons under ``bounds``. Each is judged by every method of
:mod:`.noninferiority`: the paired t bound is the primary one, the others stand beside it. Methods that treat segments
of the evaluation text as a second factor need the measure that holds them. A method that cannot reach its level with so
few seeds says so in place of a number.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from pydantic import Field

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.noninferiority import Method, NonInferiority, noninferiority
from thinwire_lab.analysis.summarise import read_table
from thinwire_lab.config import Strict
from thinwire_lab.statistics.limits import METHODS, TWO_FACTORS
from thinwire_lab.tables import write_rows

COLUMNS = (
    "study", "measure", "baseline", "candidate", "method", "n", "estimate", "upper_bound", "level", "p_value", "margin",
    "verdict", "reason",
)  # fmt: skip
SEED = 20260519
"""Of the resampling generator, so that the table is the same bytes each time."""


class Comparison(Strict):
    """Candidates against a baseline, paired by seed, lower being better."""

    study: str
    measure: str
    segments: str = Field(default="", description="the same measure kept by segment, for methods with two factors")
    block: int = Field(default=1, ge=1, description="adjacent segments that are averaged into one")
    margin: float = Field(gt=0, description="relative, 0.01 is 1 %")
    baseline: str = Field(description="cell")
    candidates: list[str] = Field(description="cells")
    alpha: float = Field(default=0.05, description="one-sided")

    @property
    def methods(self) -> tuple[Method, ...]:
        """All methods, or without segments those with one factor."""
        return METHODS if self.segments else tuple(method for method in METHODS if method not in TWO_FACTORS)


def write_bounds(claims_yaml: Path, summaries: Path, out: Path) -> None:
    """Write the bounds of every listed comparison whose cells were measured; empty fields where a method has none."""
    listed = yaml.safe_load(claims_yaml.read_text(encoding="utf-8")).get("bounds", [])
    rows: list[tuple[object, ...]] = []
    for comparison in (Comparison.model_validate(entry) for entry in listed):
        for candidate in comparison.candidates:
            rows += _rows(comparison, candidate, summaries)
    write_rows(out, COLUMNS, rows)


def _judged(asked: Comparison, candidate: str, tables: Summaries, method: Method) -> NonInferiority:
    """One comparison by one method. Raises EvidenceError where the cells have no seed or too few segments in common."""
    pair = (asked.baseline, candidate)
    options = {"margin": asked.margin, "alpha": asked.alpha, "rng": np.random.default_rng(SEED)}
    if method not in TWO_FACTORS:
        base, ours = (tables.by_seed(cell, asked.measure) for cell in pair)
        shared = sorted(base.keys() & ours.keys())
        if not shared:
            raise EvidenceError("the two cells have no seed in common")
        arms = [base[seed] for seed in shared], [ours[seed] for seed in shared]
        return noninferiority(*arms, method=method, **options)  # type: ignore[arg-type]
    first, second = (tables.by_segment(cell, asked.segments) for cell in pair)
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise EvidenceError("the two cells have no seed in common")
    segments = sorted(first[shared[0]])
    if any(set(by_seed[seed]) != set(segments) for by_seed in (first, second) for seed in shared):
        raise EvidenceError("the arms were scored on different segments")
    if len(segments) % asked.block or len(segments) < 2 * asked.block:
        raise EvidenceError(f"{len(segments)} segments can't be cut into two or more blocks of {asked.block}")
    left, right = ([[by_seed[seed][name] for name in segments] for seed in shared] for by_seed in (first, second))
    return noninferiority(left, right, method=method, block=asked.block, **options)  # type: ignore[arg-type]


def _rows(asked: Comparison, candidate: str, summaries: Path) -> list[tuple[object, ...]]:
    tables = Summaries(summaries, asked.study)
    rows: list[tuple[object, ...]] = []
    for method in asked.methods:
        try:
            found = _judged(asked, candidate, tables, method)
        except EvidenceError:
            continue
        numbers = ["" if np.isnan(value) else value for value in (found.upper_bound, 1 - asked.alpha, found.p_value)]
        rows.append(
            (asked.study, asked.measure, asked.baseline, candidate, method, found.n, found.estimate, *numbers,
             asked.margin, found.verdict, found.reason)
        )  # fmt: skip
    return rows


def read_bounds(path: Path) -> pd.DataFrame:
    """Read the table: numbers as doubles, NaN where empty. Raises FileNotFoundError."""
    return read_table(path, real=("n", "estimate", "upper_bound", "level", "p_value", "margin"))
