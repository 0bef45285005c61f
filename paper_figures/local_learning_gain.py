"""Where the speed of asynchronous stages comes from, how near it is to the limit, and what it costs in quality."""

import math

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.intervals import t_interval
from thinwire_lab.analysis.local_arms import BASELINE, speed_title, title, with_arms
from thinwire_lab.analysis.scaling import fit, ratio_of_stages

STEPS = {
    "threads": "more threads\nin one group",
    "groups": "small groups,\nglobal loss",
    "locking": "local losses:\nno waiting",
    "readout": "shared\nreadout",
}
TICKS = (0.1, 0.2, 0.5, 0.8, 1, 1.5, 2, 3, 5, 10, 20, 30)
SINGLE, WIDE = "global_backprop_1x1", "global_backprop_1x2"
CORES_31 = {"stages": 4, "threads": 7, "global_threads": 24}
COMPUTED = {
    "RGC, asynchronous": ("rgc_async_2x1_staleness_0", "rgc_async_2x1"),
    "data-parallel": ("global_ddp_2x1",),
}
"""Two workers of one thread, whose efficiency the arm of four times seven threads is computed with."""
SPEED_OF = {
    "rgc_async": ("rgc_async_4x1", "rgc_async_4x7", "rgc_async_2x1"),
    "rgc_async, 2 stages, staleness 0": ("rgc_async_2x1_staleness_0",),
}
"""Timed arm of a quality arm."""


def widths_of(table):
    return sorted(set(table["width"].dropna()), key=float) if "width" in table else []


def waterfall(ax, tables):
    """Each step's factor, geometric mean over seeds, from where the steps before it lead."""
    factors = plots.where(tables.seed("factor", scope=None), part="throughput")
    widths = widths_of(factors)
    if not widths:
        plots.blank(ax)
        return
    names = [name for name in STEPS if name in set(factors["scope"])]
    for series, width in enumerate(widths):
        mine = plots.where(factors, width=width)
        look, level, label = plots.style(series), 1.0, f"width {width}"
        for place, name in enumerate(names):
            values = plots.where(mine, scope=name)["value"]
            if values.empty:
                continue
            logs = t_interval([math.log(value) for value in values])
            x = place + 0.24 * (series - (len(widths) - 1) / 2)
            before, level = level, level * math.exp(logs.mean)
            ax.plot([x, x], [before, level], color=look["color"], linestyle="-", linewidth=5, alpha=0.45)
            ends = None
            if logs.lower is not None:
                ends = [[level - before * math.exp(logs.lower)], [before * math.exp(logs.upper) - level]]
            mark = {"color": look["color"], "marker": look["marker"], "linestyle": "none", "label": label}
            ax.errorbar(x, level, yerr=ends, markerfacecolor=None if ends else "white", **mark)
            label = "_"
    ax.axhline(1, color="0.5", linewidth=0.8)
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    ax.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xticks(range(len(names)), labels=[STEPS[name] for name in names], fontsize=6.5)
    ax.set_ylabel("bytes a second over one thread")
    ax.legend(fontsize=6.5)
    ax.set_title("a  From one thread to asynchronous stages")


def shares(ax, tables):
    totals = plots.where(tables.total("share_of_limit", scope=None), part="throughput")
    totals = totals[totals["scope"] != "judged"] if len(totals) else totals
    widths = widths_of(totals)
    if not widths:
        plots.blank(ax)
        return
    order = plots.where(totals, width=widths[0]).sort_values("mean")["scope"]
    scopes = [scope for scope in order if scope != SINGLE]
    for series, width in enumerate(widths):
        mine = plots.where(totals, width=width).set_index("scope").reindex(scopes).dropna(subset=["mean"])
        places = [scopes.index(scope) + 0.22 * (series - (len(widths) - 1) / 2) for scope in mine.index]
        look = plots.style(series)
        plots.error_bars(
            ax, places, mine, horizontal=True, color=look["color"], marker=look["marker"], label=f"width {width}"
        )
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(scopes)), labels=[speed_title(scope) for scope in scopes], fontsize=6.5)
    ax.set_ylim(-0.6, len(scopes) - 0.4)
    ax.set_xlabel("share of the limit (cores x one thread)")
    ax.legend(fontsize=6.5, loc="upper left")
    ax.set_title("b  How near to the limit")


def frontier(ax, tables, margin):
    """Quality gap against gain over the best plain backpropagation, of the arms that have both."""
    seeds = with_arms(plots.where(tables.seed("bits_per_byte"), part="quality"))
    gains = plots.where(tables.total("gain", scope=None), part="throughput")
    widths = widths_of(gains)
    gains = plots.where(gains, width=widths[0]).set_index("scope") if widths else gains
    shown = 0
    for text, fill in (("enwiki", "full"), ("enwik8", "full"), ("stories", "none"), ("tinystories", "none")):
        mine = plots.where(seeds, text=text)
        base = plots.where(mine, shown=BASELINE).set_index("seed")["value"]
        for arm, scopes in SPEED_OF.items():
            ours = plots.where(mine, shown=arm).set_index("seed")["value"]
            shared = ours.index.intersection(base.index)
            scope = next((name for name in scopes if name in gains.index), None)
            if scope is None or not len(shared):
                continue
            logs = t_interval([math.log(ours[seed] / base[seed]) for seed in shared])
            row, look = gains.loc[scope], plots.style(list(SPEED_OF).index(arm))
            x = None if row["lower"] != row["lower"] else [[row["mean"] - row["lower"]], [row["upper"] - row["mean"]]]
            y = None if logs.lower is None else [[logs.mean - logs.lower], [logs.upper - logs.mean]]
            mark = {"color": look["color"], "marker": look["marker"], "fillstyle": fill, "linestyle": "none"}
            ax.errorbar(row["mean"], logs.mean, xerr=x, yerr=y, label=f"{title(arm)}; {text}", **mark)
            shown += 1
    if not shown:
        plots.blank(ax)
        return
    ax.plot(1, 0, marker="X", color=plots.INK, linestyle="none", label="best global backpropagation")
    groups = [scope for scope in ("global_ddp_2x1", "global_ddp_4x7") if scope in gains.index]
    if groups:
        ax.plot(gains.loc[groups[0]]["mean"], 0, marker="P", color=plots.INK, linestyle="none", label="data-parallel")
    plots.published_line(ax, math.log1p(margin), "margin")
    ax.set_xlabel("throughput over global backpropagation")
    ax.set_ylabel("log-ratio of bits per byte")
    ax.legend(fontsize=6, ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.2))
    ax.set_title("c  Quality gap against throughput")


def computed(ax, tables):
    """Ratio at 31 cores, computed for each width from the rates of this machine."""
    rates = plots.where(tables.seed("throughput", scope=None), part="throughput")
    lines = []
    for width in widths_of(rates):
        mine = plots.where(rates, width=width).pivot_table(index="seed", columns="scope", values="value")
        for name, scopes in COMPUTED.items():
            scope = next((scope for scope in scopes if scope in mine), None)
            if scope is None or not {SINGLE, WIDE} <= set(mine):
                continue
            rows = mine[[SINGLE, WIDE, scope]].dropna().to_numpy()
            ratios = [ratio_of_stages(fit(one, wide, 2), pair / (2 * one), **CORES_31) for one, wide, pair in rows]
            if ratios:
                lines.append((f"{name},\nwidth {width}", t_interval(ratios)))
    if not lines:
        plots.blank(ax)
        return
    for place, (_, interval) in enumerate(lines):
        plots.paired_interval(ax, place, interval)
    ax.axvline(1, color="0.5", linewidth=0.8)
    ax.set_yticks(range(len(lines)), labels=[name for name, _ in lines], fontsize=6.5)
    ax.set_ylim(-0.6, len(lines) - 0.4)
    ax.set_xlabel("4 x 7 threads over 1 x 24, computed")
    ax.set_title("d  31 cores, computed")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "local_learning")
    figure, axes = plots.start(__file__, 8.0, 6.0, mosaic=[["a", "b"], ["c", "d"]], height_ratios=[1, 1])
    waterfall(axes["a"], tables)
    shares(axes["b"], tables)
    frontier(axes["c"], tables, plots.headline(asked.published, "quality_margin"))
    computed(axes["d"], tables)
    plots.save(figure, __file__, asked, "Means with 95 % t intervals over seeds; arms are workers x threads.")


if __name__ == "__main__":
    main()
