"""Bytes that a trainer sends in a round, and what sending fewer costs in quality."""

import math

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.intervals import t_interval

ARMS = {"ddp": "DDP", "diloco": "DiLoCo", "pulseloco": "PULSELoCo"}


def sent(ax, tables, published):
    totals = plots.where(tables.total("round_bytes"), task="grpo")
    if totals.empty:
        plots.blank(ax)
        return
    means = {}
    for place, arm in enumerate(ARMS):
        rows = totals[totals["arm"] == arm].iloc[:1]
        if rows.empty:
            continue
        means[arm] = float(rows["mean"].iloc[0])
        plots.error_bars(ax, [place], rows, horizontal=True, fmt=plots.MARKERS[place], color=plots.INK)
        ax.annotate(f"{means[arm] / 1e6:,.0f} MB", (means[arm], place - 0.22), ha="center", fontsize=7)
    for place, (arm, name) in enumerate((("diloco", "rounds_vs_diloco"), ("ddp", "rounds_vs_ddp"))):
        if arm in means:
            ratio = plots.headline(published, name)
            ax.plot(means[arm] / ratio, 2.4 + place / 4, marker="|", markersize=8, color="#777777", linestyle="none")
            where = {"xytext": (4, 0), "textcoords": "offset points"}
            text = f"{ARMS[arm]} / {ratio:.0f} (published)"
            ax.annotate(text, (means[arm] / ratio, 2.4 + place / 4), va="center", fontsize=6, color="#555555", **where)
    ax.set_xscale("log")
    ax.set_yticks(range(3), labels=list(ARMS.values()))
    ax.set_ylim(2.9, -0.6)
    ax.margins(x=0.25)
    ax.set_xlabel("bytes that a trainer sends")
    ax.set_title("a  Traffic of a round")


def quality(ax, tables):
    curves = plots.where(tables.curve("validation_bits_per_byte"), task="text")
    if curves.empty:
        plots.blank(ax)
        return
    for index, (_, rows) in enumerate(curves.groupby("cell", sort=True)):
        first = rows.iloc[0]
        rate = f", lr {float(first['lr']):.0e}" if "lr" in rows and first["lr"] == first["lr"] else ""
        plots.band(ax, rows, plots.style(index), label=f"{ARMS.get(first['arm'], first['arm'])}{rate}")
    ax.set(xlabel="round", ylabel="held-out bits per byte")
    ax.legend()
    ax.set_title("b  Quality by round")


def pairs(ax, tables):
    finals = plots.where(tables.seed("final_bits_per_byte"), task="text")
    finals = finals[finals["arm"].isin(["diloco", "pulseloco"])] if len(finals) else finals
    if finals.empty:
        plots.blank(ax)
        return
    rates = sorted(set(finals["lr"]), key=float) if "lr" in finals else [""]
    for place, rate in enumerate(rates):
        rows = finals[finals["lr"] == rate] if rate else finals
        sides = [rows[rows["arm"] == arm].set_index("seed")["value"] for arm in ("pulseloco", "diloco")]
        shared = sides[0].index.intersection(sides[1].index)
        logs = t_interval([100 * math.log(sides[0][seed] / sides[1][seed]) for seed in shared])
        plots.paired_interval(ax, place, logs)
    ax.axvline(0, color="0.5", linewidth=0.8)
    plots.published_line(ax, 1.0, "rule: at most 1 %", horizontal=False)
    ax.set_yticks(range(len(rates)), labels=[f"lr {float(rate):.0e}" if rate else "" for rate in rates])
    ax.set_ylim(len(rates) - 0.5, -0.5)
    ax.set_xlabel("PULSELoCo worse than DiLoCo, %")
    ax.set_title("c  Paired difference")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "outer_rounds")
    figure, (left, middle, right) = plots.start(__file__, 7.2, 2.7, columns=3)
    sent(left, tables, asked.published)
    quality(middle, tables)
    pairs(right, tables)
    plots.save(figure, __file__, asked, "Means with 95 % t intervals over seeds where there are several.")


if __name__ == "__main__":
    main()
