"""Every metric's name, unit and direction, and how run tables are written and read.

A run writes rows ``step, scope, metric, value``. A metric is declared once, in the ``METRICS`` of its study's module
under ``thinwire_lab.metrics``; a name that several studies record must be declared alike in each. Values are written
with ``repr``, so that reading them back gives the same double.
"""

import csv
import importlib
import io
import os
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from thinwire_lab import metrics as _metrics

RUN_COLUMNS = ("step", "scope", "metric", "value")
"""Columns of ``metrics.csv`` and ``clock.csv``."""

Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Metric:
    """A measured quantity.

    ``clock`` is true for what a clock or a scheduler touches (seconds, memory): such rows go to ``clock.csv`` and are
    not the same bytes at each rerun.
    """

    name: str
    unit: str
    better: Better = "neither"
    clock: bool = False
    description: str = ""


def _collect() -> dict[str, Metric]:
    declared: dict[str, Metric] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(_metrics.__path__)):
        for metric in importlib.import_module(f"{_metrics.__name__}.{module}").METRICS:
            known = declared.setdefault(metric.name, metric)
            if (known.unit, known.better, known.clock) != (metric.unit, metric.better, metric.clock):
                raise ValueError(f"metric {metric.name!r} is declared with two meanings, once in metrics/{module}.py")
    return declared


class _Declared(Mapping[str, Metric]):
    """The declared metrics, collected at first use (the study modules import :class:`Metric` from here)."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] | None = None

    def _all(self) -> dict[str, Metric]:
        if self._metrics is None:
            self._metrics = _collect()
        return self._metrics

    def __getitem__(self, name: str) -> Metric:
        try:
            return self._all()[name]
        except KeyError:
            raise KeyError(f"metric {name!r} is not declared in thinwire_lab/metrics") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


METRICS: Mapping[str, Metric] = _Declared()
"""Metric by name, from all studies."""


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: to a temporary name beside it, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV table atomically; floats by ``repr``, lines ended by a line feed."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([repr(float(cell)) if isinstance(cell, float) else cell for cell in row] for row in rows)
    write_text(path, buffer.getvalue())
