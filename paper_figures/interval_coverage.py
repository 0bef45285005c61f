"""How often one-sided 95 % bounds cover the truth, by method and number of seed pairs, and what they establish."""

import math

import numpy as np

from thinwire_lab.analysis import plots

NOMINAL = 0.95
ONE_WAY = ("paired-t", "bootstrap-t", "sign-flip", "bca", "percentile", "basic")
TABLE = ("two-way-t", "paired-t", "crossed", "percentile", "pooled")
NAMES = {
    "paired-t": "paired t (default)",
    "two-way-t": "two-way t",
    "pooled": "t over all cells (wrong)",
    "crossed": "crossed bootstrap",
    "bca": "BCa",
}
LOOKS = {
    "paired-t": 0,
    "percentile": 1,
    "bca": 2,
    "bootstrap-t": 3,
    "sign-flip": 4,
    "basic": 5,
    "two-way-t": 6,
    "crossed": 2,
    "pooled": 5,
}


def rows_of(tables, metric, **axes):
    return plots.where(tables.curve(metric, None), **axes)


def kept(rows, wanted):
    """The rows whose number of pairs is wanted."""
    return rows.loc[np.array([wanted(step) for step in rows["step"]], dtype=bool)]


def look_of(method):
    look = plots.style(LOOKS[method])
    return {**look, "linewidth": 2.0 if method in ("paired-t", "two-way-t") else 1.1, "markersize": 4}


def lines(ax, tables, metric, methods, **axes):
    """One line a method; open where the library gives no bound, nothing where no bound is finite."""
    shown = rows_of(tables, metric, **axes)
    if shown.empty:
        plots.blank(ax)
        return False
    refused, lost = (
        {(row["scope"], row["step"]): row["mean"] for _, row in rows_of(tables, name, **axes).iterrows()}
        for name in ("refused", "unbounded")
    )
    for method in methods:
        mine = shown[shown["scope"] == method].sort_values("step")
        mine = kept(mine, lambda step, name=method: lost.get((name, step), 0) < 1)
        look = look_of(method)
        ax.plot(mine["step"], mine["mean"], **{**look, "marker": ""}, label="_")
        for filled in (True, False):
            some = kept(mine, lambda step, name=method, full=filled: (refused.get((name, step), 0) == 0) == full)
            ax.plot(
                some["step"],
                some["mean"],
                **{**look, "linestyle": "none"},
                markerfacecolor=look["color"] if filled else "white",
                label="_",
            )
        ax.plot([], [], **look, label=NAMES.get(method, method))
    ax.set_xscale("log")
    ticks = [step for step in sorted(set(shown["step"])) if step not in (4, 6, 8)]
    ax.set_xticks(ticks, labels=[str(step) for step in ticks])
    ax.minorticks_off()
    return True


def coverage(ax, tables, title, methods, **axes):
    ax.set_title(title)
    if not lines(ax, tables, "coverage", methods, **axes):
        return
    found, errors = (rows_of(tables, name, **axes) for name in ("coverage", "coverage_error"))
    found, errors = (rows[rows["scope"] == methods[0]].sort_values("step") for rows in (found, errors))
    # the errors are of the coverage found; the band is about the nominal one
    shares = found["mean"].to_numpy().clip(0.01, 0.99)
    scale = np.sqrt(NOMINAL * (1 - NOMINAL) / (shares * (1 - shares)))
    widths = 2 * errors["mean"].to_numpy() * scale / math.sqrt(float(errors["n"].max()))
    ax.fill_between(errors["step"], NOMINAL - widths, NOMINAL + widths, color="0.85", linewidth=0, zorder=0)
    ax.axhline(NOMINAL, color="0.5", linewidth=0.8, zorder=0)
    ax.set_ylim(min(0.65, float(rows_of(tables, "coverage", **axes)["mean"].min()) - 0.02), 1.0)


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "interval_coverage")
    figure, axes = plots.start(__file__, 7.2, 5.0, mosaic=[list("abc"), list("def")])
    coverage(axes["a"], tables, "a  Normal", ONE_WAY, part="seeds", shape="normal")
    coverage(axes["b"], tables, "b  Right-skewed", ONE_WAY, part="seeds", shape="right_skew")
    coverage(axes["c"], tables, "c  Heavy tails", ONE_WAY, part="seeds", shape="heavy")
    coverage(axes["d"], tables, "d  Segments alike", TABLE, part="crossed", segments="none")
    coverage(axes["e"], tables, "e  Segments differ", TABLE, part="crossed", segments="varied")
    if lines(axes["f"], tables, "power", ONE_WAY, part="seeds", shape="normal"):
        axes["f"].set_ylabel("share established")
        axes["f"].set_ylim(0, 1.02)
    axes["f"].set_title("f  Power, normal")
    for name in "ad":
        axes[name].set_ylabel("coverage")
    for name in "def":
        axes[name].set_xlabel("seed pairs")
    for panels in ("abc", "de"):
        drawn = [axes[name] for name in panels if axes[name].get_legend_handles_labels()[1]]
        for ax in drawn[:1]:
            ax.legend(fontsize=6, loc="lower right")
    plots.save(figure, __file__, asked, "Each point: independent batches of simulated studies.")


if __name__ == "__main__":
    main()
