"""From the tables of a study's runs to its summaries: the only numbers that figures, verdicts and the report read.

A run is a point of the grid (its *cell*) with a seed, and wrote rows ``step, scope, metric, value``. Here they become

``seeds.csv``   one number a run: the study's *measures*, each a metric, a scope and how its steps are reduced
``totals.csv``  one number a cell: the mean over seeds, with its t interval
``curves.csv``  every metric by step: mean over seeds, with its t interval
``traces.csv``  one fingerprint a run and metric, equal exactly when every step's value is the same double

and ``clock_seeds.csv``, ``clock_totals.csv``, ``clock_curves.csv`` for what a clock or a scheduler touches. The tables
without a clock are the same bytes at every rerun.
"""

import csv
import hashlib
import io
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from thinwire_lab.analysis.intervals import LEVEL, t_interval
from thinwire_lab.tables import METRICS, RUN_COLUMNS, Metric, write_rows

SEEDS = ("study", "cell", "seed", "measure", "scope", "unit", "value")
TOTALS = ("study", "cell", "measure", "scope", "unit", "n", "mean", "sd", "lower", "upper", "level")
CURVES = ("study", "cell", "step", "scope", "metric", "unit", "n", "mean", "lower", "upper")
TRACES = ("study", "cell", "seed", "scope", "metric", "steps", "trace")

_WHOLE = ("seed", "step", "n", "steps")
_REAL = ("value", "mean", "sd", "lower", "upper", "level")

_Series = dict[tuple[str, str], list[tuple[int, float]]]
"""(metric, scope) -> (step, value), in the order of the steps."""

_REDUCERS: dict[str, Callable[[Sequence[float], int], float]] = {
    "mean": lambda values, _: math.fsum(values) / len(values),
    "last": lambda values, _: values[-1],
    "first": lambda values, _: values[0],
    "sum": lambda values, _: math.fsum(values),
    "min": lambda values, _: min(values),
    "max": lambda values, _: max(values),
    "median": lambda values, _: statistics.median(values),
    "gain": lambda values, window: statistics.fmean(values[-window:]) - statistics.fmean(values[:window]),
}


@dataclass(frozen=True)
class RunFiles:
    """Where one finished run's tables lie: ``metrics`` and ``clock`` are CSV, ``record`` is its ``run.json``."""

    cell: str
    seed: int
    metrics: Path
    clock: Path
    record: Path


def read_table(path: Path, whole: Sequence[str] = (), real: Sequence[str] = ()) -> pd.DataFrame:
    """Read a table: ``whole`` columns as int64, ``real`` ones as float64 (NaN where empty), all others as text.

    Numbers are the doubles that ``repr`` wrote, whatever pandas' own parser would make of them.
    """
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    for name in table.columns:
        if name in whole:
            table[name] = pd.Series([int(text) for text in table[name]], dtype="int64")
        elif name in real:
            table[name] = pd.Series([float(text) if text else math.nan for text in table[name]], dtype="float64")
    return table


def read_summary(path: Path) -> pd.DataFrame:
    """Read a summary table; ``sd``, ``lower`` and ``upper`` are NaN where a single seed gave none."""
    return read_table(path, _WHOLE, _REAL)


def _series(path: Path) -> _Series:
    text = path.read_text(encoding="utf-8")
    rows = csv.reader(io.StringIO(text, newline=""))
    if tuple(next(rows, ())) != RUN_COLUMNS:
        raise ValueError(f"{path}: the first line must be {','.join(RUN_COLUMNS)}")
    series: _Series = defaultdict(list)
    for step, scope, metric, value in rows:
        series[metric, scope].append((int(step), float(value)))
    for (metric, scope), points in series.items():
        points.sort(key=lambda point: point[0])
        if len({step for step, _ in points}) < len(points):
            raise ValueError(f"{path}: {metric} ({scope}) has two values at one step")
    return series


def _reduced(measure: Mapping[str, Any], points: list[tuple[int, float]]) -> float | None:
    values = [value for step, value in points if step >= int(measure.get("from_step", 0))]
    window = int(measure.get("window", 10))
    # the ends must not overlap: a gain between shared steps is no gain
    window = max(1, min(window, len(values) // 2)) if measure["reduce"] == "gain" else window
    if not values or (measure["reduce"] == "gain" and len(values) < 2):
        return None
    return float(_REDUCERS[measure["reduce"]](values, window))


def _check_measures(study: Mapping[str, Any], metrics: Mapping[str, Metric]) -> None:
    where = f"study {study['name']}"
    names = [measure["name"] for measure in study["measures"]]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{where}: two measures are named {doubled[0]!r}")
    for measure in study["measures"]:
        if measure["metric"] not in metrics:
            raise ValueError(f"{where}: measure {measure['name']!r} names the metric {measure['metric']!r}, undeclared")
        if measure["reduce"] not in _REDUCERS:
            raise ValueError(
                f"{where}: measure {measure['name']!r} reduces by {measure['reduce']!r}, must be one of "
                f"{', '.join(_REDUCERS)}"
            )


def _seed_rows(
    study: Mapping[str, Any], tables: list[tuple[RunFiles, _Series]], metrics: Mapping[str, Metric]
) -> list[tuple[str, str, int, str, str, str, float]]:
    rows = []
    for run, series in tables:
        for measure in study["measures"]:
            wanted = measure.get("scope", "all")
            for (metric, scope), points in series.items():
                if metric == measure["metric"] and wanted in ("*", scope):
                    value = _reduced(measure, points)
                    if value is not None:
                        unit = metrics[metric].unit
                        rows.append((study["name"], run.cell, run.seed, measure["name"], scope, unit, value))
    return sorted(rows, key=lambda row: (row[1], row[3], row[4], row[2]))


def _blank(value: float | None) -> float | str:
    return "" if value is None else value


def _total_rows(seeds: Iterable[tuple[str, str, int, str, str, str, float]]) -> list[tuple[object, ...]]:
    groups: dict[tuple[str, str, str, str, str], list[float]] = defaultdict(list)
    for study, cell, _, measure, scope, unit, value in seeds:
        groups[study, cell, measure, scope, unit].append(value)
    rows: list[tuple[object, ...]] = []
    for key, values in groups.items():
        mean = t_interval(values)
        rows.append((*key, mean.n, mean.mean, _blank(mean.sd), _blank(mean.lower), _blank(mean.upper), LEVEL))
    return rows


def _curve_rows(
    name: str, tables: list[tuple[RunFiles, _Series]], metrics: Mapping[str, Metric]
) -> list[tuple[object, ...]]:
    groups: dict[tuple[str, int, str, str], list[float]] = defaultdict(list)
    for run, series in tables:
        for (metric, scope), points in series.items():
            for step, value in points:
                groups[run.cell, step, scope, metric].append(value)
    rows: list[tuple[object, ...]] = []
    for key in sorted(groups, key=lambda key: (key[0], key[3], key[2], key[1])):
        cell, step, scope, metric = key
        values = groups[key]
        mean = t_interval(values)
        unit = metrics[metric].unit
        rows.append((name, cell, step, scope, metric, unit, mean.n, mean.mean, _blank(mean.lower), _blank(mean.upper)))
    return rows


def _trace_rows(name: str, tables: list[tuple[RunFiles, _Series]]) -> list[tuple[object, ...]]:
    rows = []
    for run, series in tables:
        for (metric, scope), points in series.items():
            lines = "".join(f"{step},{value!r}\n" for step, value in points)
            trace = hashlib.sha256(lines.encode()).hexdigest()[:16]
            rows.append((name, run.cell, run.seed, scope, metric, len(points), trace))
    return sorted(rows, key=lambda row: (row[1], row[2], row[4], row[3]))


def summarise(
    study: Mapping[str, Any], runs: Sequence[RunFiles], out: Path, metrics: Mapping[str, Metric] = METRICS
) -> None:
    """Write a study's summaries into ``out``, each table whole or not at all, rows sorted, floats by ``repr``.

    ``study`` has ``name`` and ``measures`` (mappings with name, metric, scope, reduce, from_step, window). A measure
    whose metric a run did not record has no row for that run, and ``n`` says so. A ``gain`` over fewer than two windows
    of steps shortens its windows to half the steps. Raises ValueError for two runs of one cell and seed, for measures
    that name undeclared metrics or unknown reductions, and for malformed run tables.
    """
    _check_measures(study, metrics)
    points = [(run.cell, run.seed) for run in runs]
    if len(set(points)) < len(points):
        raise ValueError(f"study {study['name']}: two runs share a cell and a seed")
    ordered = sorted(runs, key=lambda run: (run.cell, run.seed))
    name = str(study["name"])
    for prefix, which in (("", "metrics"), ("clock_", "clock")):
        tables = [(run, _series(getattr(run, which))) for run in ordered]
        unknown = sorted({metric for _, series in tables for metric, _ in series if metric not in metrics})
        if unknown:
            raise ValueError(f"study {name}: a run recorded the metric {unknown[0]!r}, which is not declared")
        seeds = _seed_rows(study, tables, metrics)
        write_rows(out / f"{prefix}seeds.csv", SEEDS, seeds)
        write_rows(out / f"{prefix}totals.csv", TOTALS, _total_rows(seeds))
        write_rows(out / f"{prefix}curves.csv", CURVES, _curve_rows(name, tables, metrics))
        if not prefix:
            write_rows(out / "traces.csv", TRACES, _trace_rows(name, tables))
