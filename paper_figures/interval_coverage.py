"""How often one-sided 95 % bounds cover the truth, by method and number of seed pairs, and what they establish."""

import math

from thinwire_lab.analysis import plots

NOMINAL = 0.95
ONE_WAY = ("paired-t", "bootstrap-t", "sign-flip", "bca", "percentile", "basic")
TABLE = ("two-way-t", "paired-t", "crossed", "percentile", "pooled")
NAMES = {
    "paired-t": "paired t (default)",
    "two-way-t": "two-way t",
    "pooled": "t over all cells (wrong)",
    "crossed": "crossed bootstrap",
    "percentile": "percentile, over seeds",
    "bca": "BCa",
}
LOOKS = ("paired-t", "percentile", "bca", "bootstrap-t", "sign-flip", "basic", "two-way-t", "crossed", "pooled")


def rows_of(tables, metric, **axes):
    return plots.where(tables.curve(metric, None), **axes)


def look_of(method):
    look = plots.style(LOOKS.index(method))
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
        mine = mine[[lost.get((method, step), 0) < 1 for step in mine["step"]]]
        look = look_of(method)
        ax.plot(mine["step"], mine["mean"], **{**look, "marker": ""}, label="_")
        for filled in (True, False):
            some = mine[[(refused.get((method, step), 0) > 0) != filled for step in mine["step"]]]
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
    errors = rows_of(tables, "coverage_error", **axes)
    errors = errors[errors["scope"] == methods[0]].sort_values("step")
    batches = float(errors["n"].iloc[0]) if len(errors) else 1.0
    widths = 2 * errors["mean"] / math.sqrt(batches)
    ax.fill_between(errors["step"], NOMINAL - widths, NOMINAL + widths, color="0.85", linewidth=0, zorder=0)
    ax.axhline(NOMINAL, color="0.5", linewidth=0.8, zorder=0)
    ax.set_ylim(min(0.65, float(rows_of(tables, "coverage", **axes)["mean"].min()) - 0.02), 1.0)


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "interval_coverage")
    figure, axes = plots.start(__file__, 7.2, 5.0, mosaic=["abc", "def"])
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
    axes["f"].legend(fontsize=6, loc="lower right")
    axes["e"].legend(fontsize=6, loc="lower right")
    plots.save(figure, __file__, asked, "Each point: independent batches of simulated studies.")


if __name__ == "__main__":
    main()
