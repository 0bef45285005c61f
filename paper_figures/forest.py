"""Non-inferiority of local learning as a forest: estimate and one-sided bound by method, margin, published interval."""

import math

import numpy as np

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.local_arms import TEXTS, compared, title, with_arms
from thinwire_lab.analysis.noninferiority import noninferiority

PART = "quality"
METHODS = ("paired-t", "two-way-t", "crossed", "bootstrap-t", "bca", "sign-flip")
BLOCK = 4
"""Adjacent segments that are averaged into one; without two whole blocks, methods with two factors have no row."""


def table_of(rows):
    """Seeds x segments of one arm, as a frame indexed by seed."""
    return rows.pivot_table(index="seed", columns="scope", values="value", sort=True)


def judged(method, seeds, segments):
    """The comparison by one method; ``seeds`` and ``segments`` are (baseline, candidate) frames of shared seeds."""
    options = {"margin": 0.01, "method": method, "rng": np.random.default_rng(20260519)}
    if method not in ("two-way-t", "crossed"):
        return noninferiority(*seeds, **options)
    columns = segments[0].shape[1]
    if columns % BLOCK or columns < 2 * BLOCK:
        return None
    return noninferiority(*(table.to_numpy() for table in segments), block=BLOCK, **options)


def comparisons(tables):
    """Text and arm with the seed values and segment tables of both arms, over the seeds that they share."""
    whole = with_arms(plots.where(tables.seed("bits_per_byte"), part=PART))
    parts = with_arms(plots.where(tables.seed("segment_bits_per_byte", None), part=PART))
    parts = parts[parts["scope"] != "all"] if len(parts) else parts
    for text, name in TEXTS.items():
        mine = plots.where(whole, text=text)
        for arm, baseline in compared(mine["shown"] if len(mine) else ()):
            arms = [plots.where(mine, shown=key).set_index("seed")["value"] for key in (baseline, arm)]
            shared = sorted(arms[0].index.intersection(arms[1].index))
            if not shared:
                continue
            pair = [[values[seed] for seed in shared] for values in arms]
            cut = [table_of(plots.where(parts, text=text, shown=key)).reindex(shared) for key in (baseline, arm)]
            yield f"{title(arm)}, {name} (n = {len(shared)})", pair, cut


def row(ax, place, method, result):
    """One method's estimate and bound."""
    primary = method == "paired-t"
    weight = "bold" if primary else "normal"
    if result.verdict == "infeasible":
        ax.plot(result.estimate, place, marker="D", color=plots.PUBLISHED, markerfacecolor="white", linestyle="none")
        said = "no bound with so few seeds"
    else:
        ax.plot(
            [result.estimate, result.upper_bound],
            [place, place],
            color=plots.INK,
            linestyle="-",
            linewidth=2.0 if primary else 1,
        )
        ax.plot(result.upper_bound, place, marker="|", color="#c0561f", markersize=9, markeredgewidth=1.6)
        face = plots.INK if primary else "white"
        ax.plot(result.estimate, place, marker="D", color=plots.INK, markerfacecolor=face, linestyle="none")
        said = f"{result.upper_bound_percent:+.2f} %, {result.verdict}"
    ax.annotate(said, (1.01, place), xycoords=("axes fraction", "data"), fontsize=6, va="center", fontweight=weight)


def draw(ax, tables, published):
    place, labels, ends = 0.0, [], [0.0]
    for named, pair, cut in comparisons(tables):
        heading = {"fontsize": 7, "fontweight": "bold", "va": "center"}
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        ax.annotate(named, (0.005, place), xycoords=("axes fraction", "data"), bbox=box, **heading)
        place += 1
        for method in METHODS:
            result = judged(method, pair, cut)
            if result is None:
                continue
            row(ax, place, method, result)
            labels.append((place, method))
            ends += [value for value in (result.estimate, result.upper_bound) if math.isfinite(value)]
            place += 1
        place += 0.4
    if not labels:
        plots.blank(ax)
        return
    mean, upper = (math.log1p(plots.headline(published, name)) for name in ("quality_mean", "quality_bound"))
    ax.plot([mean, upper], [place, place], color="#777777", linestyle="-", linewidth=2.0)
    ax.plot(mean, place, marker="s", color="#777777", linestyle="none")
    ax.plot(upper, place, marker="|", color="#777777", markersize=9, markeredgewidth=1.6)
    ax.annotate(
        f"{100 * math.expm1(upper):+.2f} %, not established",
        (1.01, place),
        xycoords=("axes fraction", "data"),
        fontsize=6,
        va="center",
    )
    labels.append((place, "published"))
    ax.axvline(0, color="0.5", linewidth=0.8)
    margin = math.log1p(plots.headline(published, "quality_margin"))
    ax.axvline(margin, color=plots.PUBLISHED, linewidth=1.0, linestyle=(0, (4, 2)), zorder=1)
    ax.annotate("margin", (margin, 1.0), xycoords=("data", "axes fraction"), va="bottom", ha="center", fontsize=6.5)
    ends += [upper]
    span = max(ends) - min(ends)
    ax.set_xlim(min(ends) - 0.08 * span, max(ends) + 0.05 * span)
    ax.set_yticks([at for at, _ in labels], labels=[text for _, text in labels], fontsize=6.5)
    ax.set_ylim(place + 0.8, -0.8)
    ax.set_xlabel("log-ratio of held-out bits per byte against global backpropagation (positive: worse)")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "local_learning")
    height = 1.2 + 0.145 * sum(len(METHODS) + 1.4 for _ in comparisons(tables))
    figure, ax = plots.start(__file__, 7.2, max(2.4, height))
    draw(ax, tables, asked.published)
    plots.save(
        figure, __file__, asked, "One-sided 95 % upper bounds; two-way t and crossed bootstrap over blocks of text."
    )


if __name__ == "__main__":
    main()
