"""One-sided bounds of paired comparisons by several methods, beside the verdict that rests on one of them.

``configs/claims.yaml`` lists the comparisons under ``bounds``. Each is judged by every method of
:mod:`.noninferiority`: the paired t bound is the primary one, the others stand beside it. Methods that treat segments
of the evaluation text as a second factor need the measure that holds them. A method that cannot reach its level with so
few seeds says so in place of a number. Where the study fixed a protocol, its method's verdicts on its data sets are
judged as one family too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import yaml
from pydantic import Field

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.noninferiority import (
    Method,
    NonInferiority,
    co_primary,
    fixed_sequence,
    holm,
    noninferiority,
)
from thinwire_lab.analysis.summarise import read_table
from thinwire_lab.config import Protocol, Strict
from thinwire_lab.statistics.limits import METHODS, TWO_FACTORS
from thinwire_lab.tables import write_rows

COLUMNS = (
    "study", "measure", "baseline", "candidate", "method", "n", "estimate", "upper_bound", "level", "p_value", "margin",
    "verdict", "family_verdict", "reason",
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


@dataclass(frozen=True)
class Row:
    """One comparison by one method."""

    asked: Comparison
    candidate: str
    method: Method
    found: NonInferiority


Protocols = Callable[[str], tuple[Protocol | None, list[str]]]
"""study -> its protocol, if it has one, and the protocol's data sets at this scale, in order."""
FAMILIES = {"fixed sequence": fixed_sequence, "co-primary": co_primary, "holm": holm}


def _no_protocol(study: str) -> tuple[Protocol | None, list[str]]:
    return None, []


def write_bounds(claims_yaml: Path, summaries: Path, out: Path, protocols: Protocols = _no_protocol) -> None:
    """Write the bounds of every listed comparison whose cells were measured; empty fields where a method has none."""
    listed = yaml.safe_load(claims_yaml.read_text(encoding="utf-8")).get("bounds", [])
    rows = [
        row
        for comparison in (Comparison.model_validate(entry) for entry in listed)
        for candidate in comparison.candidates
        for row in _rows(comparison, candidate, summaries)
    ]
    families = _families(rows, protocols)
    write_rows(out, COLUMNS, [_cells(row, families.get(place, "")) for place, row in enumerate(rows)])


def _cells(row: Row, family: str) -> tuple[object, ...]:
    asked, found = row.asked, row.found
    numbers = ["" if np.isnan(value) else value for value in (found.upper_bound, 1 - asked.alpha, found.p_value)]
    return (
        asked.study, asked.measure, asked.baseline, row.candidate, row.method, found.n, found.estimate, *numbers,
        asked.margin, found.verdict, family, found.reason,
    )  # fmt: skip


def _families(rows: list[Row], protocols: Protocols) -> dict[int, str]:
    """Place of a row -> its verdict by the protocol's rule for several data sets.

    A family is one candidate on all data sets of the protocol, told apart by the cell's axis that names the data set.
    """
    families: dict[tuple[str, str], dict[str, int]] = {}
    for place, row in enumerate(rows):
        protocol, data = protocols(row.asked.study)
        if protocol is None or (row.method, row.asked.measure) != (protocol.method, protocol.measure):
            continue
        axes = row.candidate.split(",")
        for named in (axis for axis in axes if axis.partition("=")[2] in data):
            rest = ",".join(axis for axis in axes if axis != named)
            families.setdefault((row.asked.study, rest), {})[named.partition("=")[2]] = place
    verdicts: dict[int, str] = {}
    for (study, _), places in families.items():
        protocol, data = protocols(study)
        if protocol is None or set(places) != set(data):
            continue  # a candidate that was not measured on every data set is no family
        family = FAMILIES[protocol.family]({name: rows[places[name]].found for name in data})
        verdicts |= {places[name]: family.verdicts[name] for name in data}
    return verdicts


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


def _rows(asked: Comparison, candidate: str, summaries: Path) -> list[Row]:
    tables = Summaries(summaries, asked.study)
    rows = []
    for method in asked.methods:
        try:
            rows.append(Row(asked, candidate, method, _judged(asked, candidate, tables, method)))
        except EvidenceError:
            continue
    return rows


def read_bounds(path: Path) -> pd.DataFrame:
    """Read the table: numbers as doubles, NaN where empty. Raises FileNotFoundError."""
    return read_table(path, real=("n", "estimate", "upper_bound", "level", "p_value", "margin"))
