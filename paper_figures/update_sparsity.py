"""Step and k-step sparsity of the BF16 weights, beside the published curves."""

import re

from thinwire_lab.analysis import plots

WARMUP = 20  # steps of the published runs before the full learning rate
NAMES = {"bf16": "pure BF16", "fp32_master": "FP32 master"}


def named(row):
    return f"{NAMES.get(row.get('precision', ''), row.get('precision', ''))}, lr {float(row['lr']):.0e}"


def by_step(ax, tables, published):
    for _, theirs in published.groupby(["family", "size"]):
        plain = theirs[theirs["step"] <= WARMUP + 60]
        ax.plot(plain["step"] - WARMUP, plain["mean"], color="0.8", linewidth=0.9, zorder=1)
    ax.plot([], [], color="0.8", label="published models, lr 3e-06")
    curves = tables.curve("sparsity_1")
    if curves.empty:
        plots.blank(ax)
        return
    last = curves["step"].max()
    for index, (_, rows) in enumerate(curves.groupby("cell", sort=True)):
        plots.band(ax, rows, index, label=named(rows.iloc[0]))
    ax.set_xlim(min(-2, curves["step"].min()), max(last, 20) + 1)
    ax.set(xlabel="optimizer step after warm-up", ylabel="share of weights unchanged")
    ax.legend(loc="lower left")
    ax.set_title("a  Unchanged in one step")


def by_lag(ax, tables, published):
    plain = published[(published["training"] == "GRPO") & (published["lr"] == 3e-6) & (published["rollout_reuse"] == 1)]
    for _, theirs in plain.groupby(["family", "size"]):
        ax.plot(theirs["k"], theirs["mean"], color="0.8", linewidth=0.9, zorder=1)
    lags = sorted(
        int(match[1]) for name in set(tables.totals["measure"]) if (match := re.fullmatch(r"sparsity_(\d+)", name))
    )
    totals = [tables.total(f"sparsity_{lag}").assign(k=lag) for lag in lags]
    cells = sorted({cell for rows in totals for cell in rows["cell"]})
    if not cells:
        plots.blank(ax)
        return
    for index, cell in enumerate(cells):
        rows = plots.stacked([one[one["cell"] == cell] for one in totals])
        style = plots.style(index)
        ax.plot(rows["k"], rows["mean"], **style)
        plots.error_bars(ax, rows["k"].to_list(), rows, fmt=style["marker"], color=style["color"])
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4, 8, 16, 32], labels=["1", "2", "4", "8", "16", "32"])
    plots.published_line(ax, 0.98, "stated for k up to 8: 0.98")
    ax.set(xlabel="optimizer steps between the two versions, k", ylabel="share of weights unchanged")
    ax.set_title("b  Unchanged after k steps")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "update_sparsity")
    figure, (left, right) = plots.start(__file__, 7.2, 3.1, columns=2)
    by_step(left, tables, plots.read_published(asked.published, "sparsity_by_step"))
    by_lag(right, tables, plots.read_published(asked.published, "sparsity_by_k"))
    plots.save(figure, __file__, asked, "Mean over seeds with 95 % t intervals; grey: published runs.")


if __name__ == "__main__":
    main()
