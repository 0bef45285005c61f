"""Quality of local learning: held-out bits per byte by arm, and the paired difference against the margin."""

import math

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.intervals import t_interval
from thinwire_lab.analysis.noninferiority import noninferiority

MEASURE = "bits_per_byte"
PART = "quality"
BASELINE = "global_backprop"
ARMS = {
    "global_backprop": "global",
    "local_independent": "independent",
    "rgc_sync": "RGC, synchronous",
    "rgc_async": "RGC, asynchronous",
}
TEXTS = {
    "enwiki": "enwiki slice",
    "enwik8": "enwik8",
    "stories": "children's stories",
    "tinystories": "TinyStories",
}


def by_arm(ax, seeds, text, letter):
    shown = plots.where(seeds, part=PART, text=text)
    if shown.empty:
        plots.blank(ax)
        return
    arms = [arm for arm in ARMS if arm in set(shown["arm"])]
    paired = shown.pivot_table(index="seed", columns="arm", values="value")
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
        mine = plots.where(shown, arm=arm)
        look = plots.style(place)
        ax.plot(mine["value"], [place] * len(mine), linestyle="none", marker=look["marker"], color=look["color"])
    ax.set_yticks(range(len(arms)), labels=[ARMS[arm] for arm in arms])
    ax.set_ylim(len(arms) - 0.5, -0.5)
    ax.set_xlabel("held-out bits per byte")
    ax.set_title(f"{letter}  {TEXTS[text]}")


def rows_of(seeds):
    for text, title in TEXTS.items():
        base = plots.where(seeds, part=PART, text=text, arm=BASELINE).set_index("seed")["value"]
        for arm, name in ARMS.items():
            ours = plots.where(seeds, part=PART, text=text, arm=arm).set_index("seed")["value"]
            shared = ours.index.intersection(base.index)
            if arm != BASELINE and len(shared):
                yield f"{name}, {title}", [base[seed] for seed in shared], [ours[seed] for seed in shared]


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
    ax.set_xlabel("log-ratio of held-out bits per byte against global backpropagation (positive: worse)")
    ax.set_title("c  Paired differences: 95 % t interval; stroke: one-sided 95 % bound")


def main():
    asked = plots.arguments()
    seeds = plots.read_tables(asked.summaries, "local_learning").seed(MEASURE)
    figure, axes = plots.start(__file__, 7.2, 4.6, mosaic=[["a", "b"], ["c", "c"]], height_ratios=[1, 1.5])
    present = set(seeds["text"]) if "text" in seeds else set()
    by_arm(axes["a"], seeds, "enwik8" if "enwik8" in present else "enwiki", "a")
    by_arm(axes["b"], seeds, "tinystories" if "tinystories" in present else "stories", "b")
    axes["b"].tick_params(labelleft=False)
    forest(axes["c"], seeds, asked.published)
    plots.save(figure, __file__, asked, "One mark a seed in a and b; thin lines join the arms of a seed.")


if __name__ == "__main__":
    main()
