"""What the summaries of a scale say about a cell: the only thing that a rule of judgement may look at."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pandas as pd

from thinwire_lab.analysis.summarise import read_summary


class EvidenceError(Exception):
    """A claim can't be tested; the message is the reason that its verdict gives."""


@lru_cache(maxsize=64)
def _table(path: Path, modified: int) -> pd.DataFrame:
    """``modified`` makes a table that was written anew another entry of the cache."""
    return read_summary(path)


class Summaries:
    """The summary tables of one study at one scale."""

    def __init__(self, folder: Path, study: str) -> None:
        """Tables are read from ``folder / study``."""
        self.study = study
        self._folder = folder / study

    def _read(self, name: str) -> pd.DataFrame:
        path = self._folder / name
        if not path.exists():
            raise EvidenceError(f"{self.study} has no summaries at this scale")
        return _table(path, path.stat().st_mtime_ns)

    def _both(self, name: str) -> pd.DataFrame:
        tables = [self._read(name), self._read(f"clock_{name}")]
        return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)

    def by_seed(self, cell: str, measure: str, scope: str = "all") -> dict[int, float]:
        """Seed -> value of a measure in a cell. Raises EvidenceError where nothing was measured."""
        seeds = self._both("seeds.csv")
        mine = seeds[(seeds["cell"] == cell) & (seeds["measure"] == measure) & (seeds["scope"] == scope)]
        if mine.empty:
            where = "" if scope == "all" else f" of {scope}"
            raise EvidenceError(f"{self.study} has no {measure}{where} in the cell {cell}")
        return {int(seed): float(value) for seed, value in zip(mine["seed"], mine["value"], strict=True)}

    def by_segment(self, cell: str, measure: str) -> dict[int, dict[str, float]]:
        """Seed -> scope -> value of a measure that was kept by scope. Raises EvidenceError as :meth:`by_seed` does."""
        seeds = self._both("seeds.csv")
        mine = seeds[(seeds["cell"] == cell) & (seeds["measure"] == measure) & (seeds["scope"] != "all")]
        if mine.empty:
            raise EvidenceError(f"{self.study} has no {measure} by scope in the cell {cell}")
        found: dict[int, dict[str, float]] = {}
        for seed, scope, value in zip(mine["seed"], mine["scope"], mine["value"], strict=True):
            found.setdefault(int(seed), {})[str(scope)] = float(value)
        return found

    def by_step(self, cell: str, metric: str, scope: str = "all", from_step: int = 0) -> list[float]:
        """Values of a metric by step, averaged over the seeds of a cell. Raises EvidenceError where there are none."""
        curves = self._both("curves.csv")
        mine = curves[(curves["cell"] == cell) & (curves["metric"] == metric) & (curves["scope"] == scope)]
        mine = mine[mine["step"] >= from_step].sort_values("step")
        if mine.empty:
            raise EvidenceError(f"{self.study} has no {metric} by step in the cell {cell}")
        return [float(value) for value in mine["mean"]]

    def traces(self, cell: str, metric: str, scope: str = "all") -> dict[int, tuple[int, str]]:
        """Seed -> (steps, fingerprint of all their values) of a metric. Raises EvidenceError where there are none."""
        traces = self._read("traces.csv")
        mine = traces[(traces["cell"] == cell) & (traces["metric"] == metric) & (traces["scope"] == scope)]
        if mine.empty:
            raise EvidenceError(f"{self.study} has no {metric} ({scope}) in the cell {cell}")
        return {
            int(seed): (int(steps), str(trace))
            for seed, steps, trace in zip(mine["seed"], mine["steps"], mine["trace"], strict=True)
        }

    def best(self, cells: Sequence[str], measure: str, scope: str = "all") -> str:
        """The cell whose mean of a measure is highest. Raises EvidenceError where one was not measured."""
        means = {}
        for cell in cells:
            values = self.by_seed(cell, measure, scope)
            means[cell] = sum(values.values()) / len(values)
        return max(means, key=lambda cell: means[cell])
