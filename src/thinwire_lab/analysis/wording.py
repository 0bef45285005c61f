"""How numbers and verdicts read: the same in the report, in README and in figures."""

import math
import string
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pandas as pd


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as mappings from column to value."""
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def number(value: float, unit: str = "") -> str:
    """A value for people: fractions as percentages, ratios with ``×``, log-ratios with their sign."""
    if not math.isfinite(value):
        return "–"
    if unit in ("share", "relative"):
        return f"{100 * value:{'+' if unit == 'relative' else ''}.{2 if abs(value) < 1 else 0}f} %"
    if unit == "ratio":
        return f"{value:,.0f}×" if abs(value) >= 1000 else f"{value:.3g}×"
    if unit == "log-ratio":
        return f"{value:+.4f}"
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.0f}" if abs(value) >= 10000 else f"{value:.4g}"


def found(row: Mapping[str, object]) -> str:
    """Estimate with its interval, from a row of ``claims.csv``; ``bound`` where only one end exists."""
    estimate, lower, upper = (float(str(row[name])) for name in ("estimate", "lower", "upper"))
    unit = str(row["unit"])
    if math.isnan(estimate):
        return "–"
    text = number(estimate, unit)
    if math.isnan(upper):
        return text
    if math.isnan(lower):
        return f"{text} (bound {number(upper, unit)})"
    return f"{text} [{number(lower, unit)}, {number(upper, unit)}]"


def answer(template: str, verdicts: pd.DataFrame, totals: Mapping[str, str] | None = None) -> str:
    """Fill a one-sentence answer such as ``{P-sparsity-step.estimate} of the weights ...`` from verdicts.

    Fields are ``estimate``, ``lower``, ``upper``, ``n``, ``verdict`` and ``found`` of a claim's row, or
    ``{totals[CELL|SCOPE|MEASURE]}``, a mean of the study's own. Where a claim that the sentence needs was not tested,
    or a mean was not measured, the answer says that instead. Raises ValueError for a claim that doesn't exist.
    """
    rows = {str(row["id"]): row for row in records(verdicts)}
    values: dict[str, Any] = {"totals": totals or {}}
    for _, field, _, _ in string.Formatter().parse(template):
        if field is None:
            continue
        if field.startswith("totals["):
            place = field.removeprefix("totals[").removesuffix("]")
            if place not in values["totals"]:
                return f"Not answered at this scale: {place.replace('|', ', ')} was not measured."
            continue
        name = field.partition(".")[0]
        if name not in rows:
            raise ValueError(f"an answer names the claim {name!r}, which claims.csv doesn't have")
        row = rows[name]
        if row["verdict"] == "not tested":
            return f"Not answered at this scale: {row['reason']}."
        unit = str(row["unit"])
        shown = {end: number(float(row[end]), unit) for end in ("estimate", "lower", "upper")}
        n = "" if math.isnan(float(row["n"])) else f"{float(row['n']):,.0f}"
        values[name] = SimpleNamespace(**shown, n=n, verdict=row["verdict"], found=found(row))
    return template.format(**values)
