"""What the figures share: reading summaries, intervals, marks for published values, and files without a date.

Each script in ``paper_figures/`` draws one figure from summaries and published tables alone. Marks differ in shape and
line as well as in colour, so that a figure reads in grey; where a scale has no numbers for a panel, the panel says so.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd

from thinwire_lab.analysis.intervals import Interval
from thinwire_lab.analysis.summarise import read_summary

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK = "#14213d"
PUBLISHED = "#8d8d8d"


@dataclass(frozen=True)
class Tables:
    """A study's ``totals``, ``seeds`` and ``curves``, those of the clock included."""

    totals: pd.DataFrame
    seeds: pd.DataFrame
    curves: pd.DataFrame

    def total(self, measure: str, scope: str | None = "all") -> pd.DataFrame:
        """Rows of a measure with a column for each axis of the cell; ``scope`` None keeps every scope."""
        return _picked(self.totals, "measure", measure, scope)

    def seed(self, measure: str, scope: str | None = "all") -> pd.DataFrame:
        """The same, by seed."""
        return _picked(self.seeds, "measure", measure, scope)

    def curve(self, metric: str, scope: str | None = "all") -> pd.DataFrame:
        """The same, by step, of a metric."""
        return _picked(self.curves, "metric", metric, scope)


def axes_of(cell: str) -> dict[str, str]:
    """``lr=3e-06,precision=bf16`` as a mapping."""
    return dict(part.split("=", 1) for part in cell.split(",") if part)


def _picked(table: pd.DataFrame, column: str, name: str, scope: str | None) -> pd.DataFrame:
    mine = table[(table[column] == name) & ((table["scope"] == scope) if scope is not None else True)]
    axes = pd.DataFrame([axes_of(cell) for cell in mine["cell"]], index=mine.index, dtype="str")
    clash = [axis for axis in axes.columns if axis in mine.columns]
    return mine.join(axes.drop(columns=clash))


def read_tables(summaries: Path, study: str) -> Tables:
    """Read a study's summaries. Raises FileNotFoundError where there are none."""
    tables = {}
    for name in ("totals", "seeds", "curves"):
        both = [read_summary(summaries / study / f"{prefix}{name}.csv") for prefix in ("", "clock_")]
        tables[name] = pd.concat([table for table in both if len(table)] or both[:1], ignore_index=True)
    return Tables(**tables)


def read_published(folder: Path, name: str) -> pd.DataFrame:
    """A published table; values that look like numbers are numbers."""
    return pd.read_csv(folder / f"{name}.csv", keep_default_na=True)


def headline(folder: Path, name: str) -> float:
    """A single published value. Raises KeyError for an unknown name."""
    table = read_published(folder, "headlines")
    return float(table.set_index("name")["value"].to_dict()[name])


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line of every figure script: ``--summaries --published --out --scale``."""
    parser = argparse.ArgumentParser(description="Draw one figure from summaries.")
    parser.add_argument("--summaries", type=Path, required=True, help="folder with one folder of tables a study")
    parser.add_argument("--published", type=Path, required=True, help="folder with the published tables")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pdf and the png")
    parser.add_argument("--scale", required=True, help="scale that the summaries were made at")
    return parser.parse_args(argv)


def start(script: str, width: float, height: float, *, columns: int = 1, mosaic: Any = None, **options: Any) -> Any:
    """Figure and axes (a row of ``columns``, or by name a ``mosaic``) in the script's style; size in inches."""
    mpl.use("agg")
    plt.rcdefaults()
    plt.style.use(Path(script).with_name("paper.mplstyle"))
    if mosaic is not None:
        return plt.subplot_mosaic(mosaic, figsize=(width, height), **options)
    return plt.subplots(1, columns, figsize=(width, height), **options)


def style(index: int) -> dict[str, Any]:
    """Colour, line and mark of the index-th series."""
    cycle = list(mpl.rcParams["axes.prop_cycle"])
    return {**cycle[index % len(cycle)], "marker": MARKERS[index % len(MARKERS)]}


def where(table: pd.DataFrame, **axes: str) -> pd.DataFrame:
    """The rows whose cell has these values on its axes; none where no cell has such an axis."""
    for axis, value in axes.items():
        table = table[table[axis] == value] if axis in table else table.iloc[:0]
    return table


def stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables of the same columns as one."""
    return pd.concat(list(tables), ignore_index=True)


def error_bars(ax: Any, x: Any, rows: pd.DataFrame, *, horizontal: bool = False, **options: Any) -> None:
    """Means with their intervals; a mean without an interval is an open mark."""
    rows = rows.reset_index(drop=True)
    for index, place in enumerate(x):
        row = rows.iloc[index]
        single = pd.isna(row["lower"])
        ends = None if single else [[row["mean"] - row["lower"]], [row["upper"] - row["mean"]]]
        mark = {"markerfacecolor": "white" if single else None, "linestyle": "none", **options}
        if index > 0:
            mark["label"] = "_"
        if horizontal:
            ax.errorbar(row["mean"], place, xerr=ends, **mark)
        else:
            ax.errorbar(place, row["mean"], yerr=ends, **mark)


def paired_interval(ax: Any, place: float, interval: Interval) -> None:
    """The mean of paired differences with its interval, in the row ``place``; open where one pair has no interval."""
    ends = None
    if interval.lower is not None and interval.upper is not None:
        ends = [[interval.mean - interval.lower], [interval.upper - interval.mean]]
    ax.errorbar(interval.mean, place, xerr=ends, fmt="D", color=INK, markerfacecolor=None if ends else "white")


def band(ax: Any, rows: pd.DataFrame, look: dict[str, Any], **options: Any) -> None:
    """A curve by step, in a look from :func:`style`, with the band of its interval."""
    rows = rows.sort_values("step")
    ax.plot(rows["step"], rows["mean"], markevery=max(1, len(rows) // 8), **look, **options)
    whole = rows.dropna(subset=["lower", "upper"])
    if len(whole):
        ax.fill_between(whole["step"], whole["lower"], whole["upper"], color=look["color"], alpha=0.15, linewidth=0)


def published_line(ax: Any, value: float, text: str, *, horizontal: bool = True) -> None:
    """A thin grey line at a published value, named at its end."""
    if horizontal:
        ax.axhline(value, color=PUBLISHED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        ax.annotate(
            text,
            (1.0, value),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=6.5,
            color="#555555",
        )
    else:
        ax.axvline(value, color=PUBLISHED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
        ax.annotate(
            text,
            (value, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-2, -2),
            textcoords="offset points",
            ha="right",
            va="top",
            rotation=90,
            fontsize=6.5,
            color="#555555",
        )


def blank(ax: Any, text: str = "not measured at this scale") -> None:
    """An empty panel that says why."""
    ax.set_xticks([])
    ax.set_yticks([])
    ax.grid(False)
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color="#777777", fontsize=7.5)


def save(figure: Any, script: str, arguments_: argparse.Namespace, note: str) -> None:
    """Write ``NAME.pdf`` and ``NAME.png``, named after the script, without a date in them."""
    figure.supxlabel(f"{arguments_.scale} scale. {note}", fontsize=6.5, color="#555555", x=0.01, ha="left")
    arguments_.out.mkdir(parents=True, exist_ok=True)
    stem = arguments_.out / Path(script).stem
    figure.savefig(stem.with_suffix(".pdf"), metadata={"CreationDate": None, "ModDate": None})
    figure.savefig(stem.with_suffix(".png"), metadata={"Software": None})
    plt.close(figure)
