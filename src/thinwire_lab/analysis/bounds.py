"""One-sided bounds of paired comparisons by several methods, beside the verdict that rests on one of them.

``configs/claims.yaml`` lists the comparisons under ``bounds``. Each is judged by the paired t bound, the primary one,
by the exact sign-flip test, and by percentile and BCa bootstrap bounds. A method that cannot reach its level with so
few seeds says so in place of a number.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from pydantic import Field

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.noninferiority import Method, noninferiority
from thinwire_lab.analysis.summarise import read_table
from thinwire_lab.config import Strict
from thinwire_lab.tables import write_rows

COLUMNS = (
    "study", "measure", "baseline", "candidate", "method", "n", "estimate", "upper_bound", "level", "p_value", "margin",
    "verdict", "reason",
)  # fmt: skip
METHODS: tuple[Method, ...] = ("paired-t", "sign-flip", "percentile", "bca")
SEED = 20260519
"""Of the resampling generator, so that the table is the same bytes each time."""


class Comparison(Strict):
    """Candidates against a baseline, paired by seed, lower being better."""

    study: str
    measure: str
    margin: float = Field(gt=0, description="relative, 0.01 is 1 %")
    baseline: str = Field(description="cell")
    candidates: list[str] = Field(description="cells")
    alpha: float = Field(default=0.05, description="one-sided")


def write_bounds(claims_yaml: Path, summaries: Path, out: Path) -> None:
    """Write the bounds of every listed comparison whose cells were measured; empty fields where a method has none."""
    listed = yaml.safe_load(claims_yaml.read_text(encoding="utf-8")).get("bounds", [])
    rows: list[tuple[object, ...]] = []
    for comparison in (Comparison.model_validate(entry) for entry in listed):
        for candidate in comparison.candidates:
            rows += _rows(comparison, candidate, summaries)
    write_rows(out, COLUMNS, rows)


def _rows(asked: Comparison, candidate: str, summaries: Path) -> list[tuple[object, ...]]:
    tables = Summaries(summaries, asked.study)
    try:
        base, mine = (tables.by_seed(cell, asked.measure) for cell in (asked.baseline, candidate))
    except EvidenceError:
        return []
    shared = sorted(base.keys() & mine.keys())
    if not shared:
        return []
    pairs = [base[seed] for seed in shared], [mine[seed] for seed in shared]
    rows: list[tuple[object, ...]] = []
    for method in METHODS:
        rng = np.random.default_rng(SEED)
        found = noninferiority(*pairs, margin=asked.margin, alpha=asked.alpha, method=method, rng=rng)
        numbers = ["" if np.isnan(value) else value for value in (found.upper_bound, 1 - asked.alpha, found.p_value)]
        rows.append(
            (asked.study, asked.measure, asked.baseline, candidate, method, found.n, found.estimate, *numbers,
             asked.margin, found.verdict, found.reason)
        )  # fmt: skip
    return rows


def read_bounds(path: Path) -> pd.DataFrame:
    """Read the table: numbers as doubles, NaN where empty. Raises FileNotFoundError."""
    return read_table(path, real=("n", "estimate", "upper_bound", "level", "p_value", "margin"))
