"""The project's own goals, beside what was measured: is each reached?

``configs/claims.yaml`` lists them under ``reaches``. A reach is no published claim: it says how small or fast a part of
the library ought to be, and is judged by the study's own number in one cell, with the lowest and the highest beside it:
of the seeds, or of the steps of a single one (versions of weights, where the study is of codecs). *met*: number,
lowest and highest meet it; *met on the whole*: the number meets it, not both of them do; *missed*: the number misses
it; *stale* as for claims. A reach without a condition is shown for comparison.
"""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import yaml
from pydantic import Field, ValidationError

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.rules import Condition
from thinwire_lab.analysis.summarise import read_summary, read_table
from thinwire_lab.config import ConfigError, Strict
from thinwire_lab.tables import write_rows

COLUMNS = ("study", "what", "cell", "measure", "scope", "unit", "reach", "found", "lowest", "highest", "n", "verdict",
           "published", "reason")  # fmt: skip


class Reach(Strict):
    """A goal for one number."""

    what: str = Field(description="what is measured, in a few words")
    study: str
    cell: str
    measure: str = Field(description="measure of the study, named like the metric that it reduces")
    scope: str = "all"
    condition: Condition | None = Field(default=None, description="left out where the number is shown for comparison")
    published: str = Field(default="", description="a published or otherwise stated number of the same thing")


def load_reaches(path: Path) -> list[Reach]:
    """Read the reaches in ``claims.yaml``. Raises ConfigError for a malformed one."""
    listed = yaml.safe_load(path.read_text(encoding="utf-8")).get("reaches", [])
    try:
        return [Reach.model_validate(entry) for entry in listed]
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: reaches: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def write_reaches(claims_yaml: Path, summaries: Path, out: Path, fresh: Callable[[str], bool]) -> None:
    """Write a row for every reach; numbers are empty and ``reason`` says why where nothing was measured."""
    write_rows(out, COLUMNS, [_row(reach, summaries, fresh) for reach in load_reaches(claims_yaml)])


def _row(reach: Reach, summaries: Path, fresh: Callable[[str], bool]) -> tuple[object, ...]:
    head = (reach.study, reach.what, reach.cell, reach.measure, reach.scope)
    text = reach.condition.text if reach.condition else ""
    tables = Summaries(summaries, reach.study)
    try:
        seeds = list(tables.by_seed(reach.cell, reach.measure, reach.scope).values())
        steps = tables.by_step(reach.cell, reach.measure, reach.scope)
    except EvidenceError as error:
        return (*head, "", text, "", "", "", "", "not tested", reach.published, str(error))
    spread = seeds if len(seeds) > 1 else steps
    found, ends = sum(seeds) / len(seeds), (min(spread), max(spread))
    unit = _unit(summaries / reach.study, reach.measure)
    verdict = _verdict(reach.condition, found, ends) if fresh(reach.study) else "stale"
    return (*head, unit, text, found, *ends, len(spread), verdict, reach.published, "")


def _verdict(condition: Condition | None, found: float, ends: tuple[float, float]) -> str:
    if condition is None:
        return ""
    if not condition.satisfied(found):
        return "missed"
    return "met" if all(condition.satisfied(end) for end in ends) else "met on the whole"


def _unit(folder: Path, measure: str) -> str:
    for name in ("seeds.csv", "clock_seeds.csv"):
        table = read_summary(folder / name)
        for unit in table[table["measure"] == measure]["unit"]:
            return str(unit)
    return ""


def read_reaches(path: Path) -> pd.DataFrame:
    """Read the table: numbers as doubles, NaN where empty. Raises FileNotFoundError."""
    return read_table(path, real=("found", "lowest", "highest", "n"))
