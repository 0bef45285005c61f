"""Quality of local learning: held-out bits per byte by arm, and the paired difference against the margin."""

import math

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.intervals import t_interval
from thinwire_lab.analysis.local_arms import TEXTS, compared, title, with_arms
from thinwire_lab.analysis.noninferiority import noninferiority

MEASURE = "bits_per_byte"
EQUAL_TIME = ("rgc_async, 2 stages, staleness 0", "global_backprop, 205 batches")
"""The variant, and what the fastest global schedule trains in the time of its batches."""


def full_length(table):
    """Arms that train for the compared number of batches, in one order for all panels, so that an arm looks alike."""
    return [arm for arm in dict.fromkeys(table["shown"]) if not arm.endswith("batches")] if len(table) else []


def by_arm(ax, seeds, text, letter):
    shown = plots.where(seeds, text=text)
    arms = full_length(shown)
    if not arms:
        plots.blank(ax)
        return
    order = full_length(seeds)
    paired = shown.pivot_table(index="seed", columns="shown", values="value")
    for _, values in paired.iterrows():
        ax.plot(
            [values.get(arm, math.nan) for arm in arms],
            range(len(arms)),
            color="0.85",
            linestyle="-",
            linewidth=0.8,
            zorder=1,
        )
    for place, arm in enumerate(arms):
        mine = plots.where(shown, shown=arm)
        look = plots.style(order.index(arm))
        ax.plot(mine["value"], [place] * len(mine), linestyle="none", marker=look["marker"], color=look["color"])
    ax.set_yticks(range(len(arms)), labels=[title(arm) for arm in arms])
    ax.set_ylim(len(arms) - 0.5, -0.5)
    ax.set_xlabel("held-out bits per byte")
    ax.set_title(f"{letter}  {TEXTS[text]}")


def rows_of(seeds):
    for text, name in TEXTS.items():
        mine = plots.where(seeds, text=text)
        pairs = [(f"{title(arm)}, {name}", arm, base) for arm, base in compared(mine["shown"] if len(mine) else ())]
        pairs.append((f"{title(EQUAL_TIME[0])}, {name}, equal time", *EQUAL_TIME))
        for named, arm, baseline in pairs:
            base, ours = (plots.where(mine, shown=key).set_index("seed")["value"] for key in (baseline, arm))
            shared = ours.index.intersection(base.index)
            if len(shared):
                yield named, [base[seed] for seed in shared], [ours[seed] for seed in shared]


def forest(ax, seeds, published):
    rows = list(rows_of(seeds)) if len(seeds) else []
    if not rows:
        plots.blank(ax)
        return
    for place, (_, base, ours) in enumerate(rows):
        logs = t_interval([math.log(mine / theirs) for mine, theirs in zip(ours, base, strict=True)])
        plots.paired_interval(ax, place, logs)
        bound = noninferiority(base, ours).upper_bound
        if math.isfinite(bound):
            ax.plot(bound, place, marker="|", color="#c0561f", markersize=11, markeredgewidth=1.6, linestyle="none")
        ax.annotate(f"n = {logs.n}", (1.0, place), xycoords=("axes fraction", "data"), fontsize=6.5, va="center")
    mean, upper = plots.headline(published, "quality_mean"), plots.headline(published, "quality_bound")
    place = len(rows)
    ax.errorbar(mean, place, xerr=[[0], [upper - mean]], fmt="s", color="#777777", capsize=2.5)
    ax.axvline(0, color="0.5", linewidth=0.8)
    margin = plots.headline(published, "quality_margin")
    plots.published_line(ax, math.log1p(margin), "margin", horizontal=False)
    ax.set_yticks(range(place + 1), labels=[name for name, _, _ in rows] + ["published mean and bound"])
    ax.set_ylim(place + 0.6, -0.6)
    ax.set_xlabel("log-ratio of bits per byte against global (positive: worse)")
    ax.set_title("c  Paired differences")


def losses(ax, curves, text):
    """Training loss by batch, a running mean over seeds and ten batches, of the arms of one length."""
    shown = plots.where(curves, text=text)
    arms, order = full_length(shown), full_length(curves)
    if not arms:
        plots.blank(ax)
        return
    for arm in arms:
        mine = plots.where(shown, shown=arm).sort_values("step")
        mean = mine["mean"].rolling(10, min_periods=1).mean() / math.log(2)
        look = plots.style(order.index(arm))
        ax.plot(mine["step"], mean, label=title(arm), markevery=max(1, len(mine) // 8), linewidth=1.0, **look)
    ax.set_xlabel("batch")
    ax.set_ylabel("training loss, bits per byte")
    ax.legend(fontsize=6.5)
    ax.set_title(f"d  Training, {TEXTS[text]}")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "local_learning")
    seeds = tables.seed(MEASURE)
    seeds = with_arms(plots.where(seeds, part="quality"))
    curves = with_arms(plots.where(tables.curve("loss"), part="quality"))
    panels = [["a"], ["b"], ["c"], ["d"]]
    figure, axes = plots.start(__file__, 7.2, 7.2, mosaic=panels, height_ratios=[1, 0.8, 1.6, 1.6])
    present = set(seeds["text"]) if "text" in seeds else set()
    by_arm(axes["a"], seeds, "enwik8" if "enwik8" in present else "enwiki", "a")
    by_arm(axes["b"], seeds, "tinystories" if "tinystories" in present else "stories", "b")
    forest(axes["c"], seeds, asked.published)
    losses(axes["d"], curves, "enwik8" if "enwik8" in present else "enwiki")
    plots.save(
        figure,
        __file__,
        asked,
        "One mark a seed in a, b; lines join a seed's arms. c: 95 % t interval, stroke: one-sided 95 % bound.",
    )


if __name__ == "__main__":
    main()
