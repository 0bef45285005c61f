"""Step and k-step sparsity of the BF16 weights, beside the published curves."""

import re

from thinwire_lab.analysis import plots

WARMUP = 20  # steps of the published runs before the full learning rate
LAGGED = re.compile(r"sparsity_(\d+)")
NAMES = {"bf16": "pure BF16", "fp32_master": "FP32 master"}


def named(row):
    model = f"{row['model']}, " if isinstance(row.get("model"), str) else ""
    return f"{model}{NAMES.get(row['precision'], row['precision'])}, lr {float(row['lr']):.0e}"


def looks_of(*tables):
    """Cell -> style and label, alike in both panels; learning rates in their order."""
    rows = plots.stacked(tables).drop_duplicates("cell")
    rows = rows.assign(rate=rows["lr"].astype(float)).sort_values(["precision", "rate"])
    return {row["cell"]: (plots.style(index), named(row)) for index, (_, row) in enumerate(rows.iterrows())}


def changed(rows):
    """Sparsity as the share that changed, whose logarithm can be read."""
    ends = {"lower": 1 - rows["upper"], "upper": 1 - rows["lower"]}
    return rows.assign(mean=1 - rows["mean"], **{name: end.clip(lower=1e-7) for name, end in ends.items()})


def by_step(ax, curves, looks, published):
    for _, theirs in published.groupby(["family", "size"]):
        plain = theirs[theirs["step"] <= WARMUP + 60]
        ax.plot(plain["step"] - WARMUP, 1 - plain["mean"], color="0.8", linestyle="-", linewidth=0.9, zorder=1)
    for cell, (look, _) in looks.items():
        rows = changed(curves[curves["cell"] == cell])
        if len(rows):
            plots.band(ax, rows, look)
    ax.set_xlim(min(-2, curves["step"].min()), max(curves["step"].max(), 20) + 1)
    ax.set_ylabel("share of weights changed")
    ax.set_xlabel("optimizer step after warm-up")
    ax.set_title("a  Changed in one step")


def by_lag(ax, totals, looks, published, stated):
    plain = published[(published["training"] == "GRPO") & (published["lr"] == 3e-6) & (published["rollout_reuse"] == 1)]
    for _, theirs in plain.groupby(["family", "size"]):
        ax.plot(theirs["k"], 1 - theirs["mean"], color="0.8", linestyle="-", linewidth=0.9, zorder=1)
    for cell, (look, _) in looks.items():
        rows = changed(totals[totals["cell"] == cell].sort_values("k"))
        ax.plot(rows["k"], rows["mean"], color=look["color"], linestyle=look["linestyle"])
        plots.error_bars(ax, rows["k"].to_list(), rows, fmt=look["marker"], color=look["color"])
    ax.set_xscale("log", base=2)
    ax.set_xticks([1, 2, 4, 8, 16, 32], labels=["1", "2", "4", "8", "16", "32"])
    plots.published_line(ax, 1 - stated, f"stated: below {100 * (1 - stated):.0f} % up to k = 8")
    ax.set_xlabel("optimizer steps between the two versions, k")
    ax.set_title("b  Changed after k steps")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "update_sparsity")
    figure, (left, right) = plots.start(__file__, 7.2, 3.5, columns=2, sharey=True)
    curves = tables.curve("sparsity_1")
    lags = {name: int(match[1]) for name in set(tables.totals["measure"]) if (match := LAGGED.fullmatch(name))}
    lags["step_sparsity"] = 1
    totals = plots.stacked([tables.total(name).assign(k=lag) for name, lag in sorted(lags.items())] or [curves])
    if curves.empty or totals.empty:
        plots.blank(left)
        plots.blank(right)
    else:
        looks = looks_of(curves, totals)
        by_step(left, curves, looks, plots.read_published(asked.published, "sparsity_by_step"))
        stated = plots.headline(asked.published, "k8_sparsity")
        by_lag(right, totals, looks, plots.read_published(asked.published, "sparsity_by_k"), stated)
        left.set_yscale("log")
        ticks = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
        left.set_yticks(ticks, labels=[f"{100 * tick:g} %" for tick in ticks])
        left.minorticks_off()
        handles = [left.plot([], [], label=name, **look)[0] for look, name in looks.values()]
        handles.append(left.plot([], [], color="0.8", linestyle="-", label="published models, lr 3e-06")[0])
        figure.legend(handles=handles, loc="outside upper left", ncols=4)
    plots.save(figure, __file__, asked, "Sparsity is 1 minus this share. Mean over seeds with 95 % t intervals.")


if __name__ == "__main__":
    main()
