"""What local learning costs and gains on equal cores: bytes trained a second, and peak memory."""

import pandas as pd

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.local_arms import BASELINE, NAMES, speed_title

PANELS = (
    ("a  Throughput", "throughput", "throughput", 1e3, "kB trained a second", "throughput_ratio"),
    ("b  Peak memory", "memory", "peak_pss", 1e6, "MB, summed over processes", "memory_ratio"),
)


def narrowest(totals):
    """The rows of the smallest width that was timed; all of them where no width is named."""
    if "width" not in totals or totals["width"].isna().all():
        return totals
    return totals[totals["width"].astype(float) == totals["width"].astype(float).min()]


def panel(ax, tables, published, asked):
    title, part, measure, unit, axis, name = asked
    totals = narrowest(plots.where(tables.total(measure, scope=None), part=part))
    if totals.empty:
        plots.blank(ax)
        return
    totals = totals.sort_values("mean").reset_index(drop=True)
    for column in ("mean", "lower", "upper"):
        totals[column] = totals[column] / unit
    for place in range(len(totals)):
        ours = totals["scope"][place].startswith("rgc_async")
        look = {"fmt": "D" if ours else "o", "color": "#c0561f" if ours else plots.INK}
        plots.error_bars(ax, [place], totals.iloc[[place]], horizontal=True, **look)
    base = totals[totals["scope"].str.startswith(BASELINE)]["mean"]
    if len(base):
        value = float(base.max()) * plots.headline(published, name)
        plots.published_line(ax, value, f"published: {plots.headline(published, name):g} x global", horizontal=False)
    ax.set_yticks(range(len(totals)), labels=[NAMES.get(scope) or speed_title(scope) for scope in totals["scope"]])
    ax.set_ylim(-0.6, len(totals) - 0.4)
    ax.set_xlim(left=0)
    ax.set_xlabel(axis)
    ax.set_title(title)


def account(ax, tables):
    """Bytes by part of each arm's own account, stacked."""
    totals = plots.where(tables.total("ledger", scope=None), part="memory")
    arms = [arm for arm in (BASELINE, "rgc_async") if totals["scope"].str.startswith(f"{arm}_").any()]
    if not arms:
        plots.blank(ax)
        return
    parts = list(dict.fromkeys(scope.rpartition("_")[2] for scope in totals["scope"]))
    means = totals.set_index("scope")["mean"]
    left = dict.fromkeys(arms, 0.0)
    for place, part in enumerate(parts):
        look = plots.style(place)
        for row, arm in enumerate(arms):
            amount = means.get(f"{arm}_{part}", 0.0) / 1e6
            ax.barh(row, amount, left=left[arm], color=look["color"], label=part if row == 0 else "_", height=0.5)
            left[arm] += amount
    peaks = plots.where(tables.total("in_use", scope=None), part="memory").set_index("scope")["mean"]
    for row, arm in enumerate(arms):
        measured = peaks.get(arm)
        if measured is not None and pd.notna(measured):
            ax.plot([measured / 1e6] * 2, [row - 0.35, row + 0.35], color="black", linestyle="-", linewidth=1.6)
    ax.set_yticks(range(len(arms)), labels=[NAMES[arm] for arm in arms])
    ax.set_ylim(-0.6, len(arms) - 0.1)
    ax.set_xlabel("MB; stroke: measured in use")
    ax.legend(fontsize=6, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    ax.set_title("c  Where the bytes go")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "local_learning")
    figure, axes = plots.start(__file__, 7.2, 4.6, mosaic=[["a", "a"], ["b", "c"]], height_ratios=[1.2, 1])
    for name, described in zip("ab", PANELS, strict=True):
        panel(axes[name], tables, asked.published, described)
    account(axes["c"], tables)
    plots.save(figure, __file__, asked, "Means with 95 % t intervals over seeds; open marks: a single run.")


if __name__ == "__main__":
    main()
