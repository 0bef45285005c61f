"""Bits a changed weight under every codec, and how far that is from the entropy bound."""

from thinwire_lab.analysis import plots

OWN = ("absolute", "relative", "context", "dense", "auto")
SLICE = ("bsdiff4",)
PUBLISHED_LAYOUT = "coo-gaps"  # measured there on differences of values, which are easier to compress
LOOKS = {
    "own": {"marker": "o", "color": "#c0561f"},
    "published": {"marker": "s", "color": plots.INK},
    "plain": {"marker": "^", "color": "#8d8d8d"},
    "slice": {"marker": "^", "color": "#8d8d8d", "markerfacecolor": "white"},
}
LABELS = {
    "own": "this library's encodings",
    "published": "published layout",
    "plain": "general tools on whole versions",
    "slice": "the same on a slice",
}


def kind(codec):
    if codec in OWN:
        return "own"
    if codec in SLICE:
        return "slice"
    return "published" if codec.startswith("published") else "plain"


def bits(ax, tables, source, order, published):
    totals = tables.total("bits_per_change", scope=None)
    steps = tables.curve("bits_per_change", scope=None)
    totals, steps = totals[totals["source"] == source], steps[steps["source"] == source]
    shown = set()
    for place, codec in enumerate(order):
        look = LOOKS[kind(codec)]
        mine = steps[steps["scope"] == codec]
        ax.plot(mine["mean"], [place] * len(mine), linestyle="none", marker="|", color="0.6", markersize=6, zorder=1)
        rows = totals[totals["scope"] == codec]
        label = LABELS[kind(codec)] if kind(codec) not in shown else None
        shown.add(kind(codec))
        ax.plot(rows["mean"], [place] * len(rows), linestyle="none", label=label, **look)
        for value in rows["mean"]:
            ax.annotate(
                f"{value:.1f}", (value, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=6
            )
    theirs = published[(published["layout"] == PUBLISHED_LAYOUT) & (published["values"] == "differences")]
    named = theirs.assign(codec="published_" + theirs["compressor"].str.replace("-", ""))
    for place, codec in enumerate(order):
        value = named[named["codec"] == codec]["bits_per_changed_weight"]
        ax.plot(value, [place] * len(value), linestyle="none", marker="x", color=plots.PUBLISHED, markersize=5)
    bound = tables.total("bound_bits")
    bound = bound[bound["source"] == source]
    if len(bound):
        value = float(bound["mean"].iloc[0])
        ax.axvspan(0, value, color="#e3e1da", alpha=0.5, linewidth=0, zorder=0)
        ax.axvline(value, color="0.25", linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
        ax.annotate(
            f"conditional entropy {value:.2f}",
            (value, 0.02),
            xycoords=("data", "axes fraction"),
            xytext=(-3, 0),
            textcoords="offset points",
            ha="right",
            va="bottom",
            rotation=90,
            fontsize=6.5,
        )
    ax.set_xscale("log")
    ticks = [2, 4, 8, 16, 32, 64]
    ax.set_xticks(ticks, labels=[str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(order)), labels=[codec.replace("_", " ") for codec in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ends = [*totals["mean"], *bound["mean"]]
    if ends:
        ax.set_xlim(min(ends) / 1.35, max(ends) * 1.45)
    ax.set_xlabel("bits a changed weight")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "patch_codec")
    published = plots.read_published(asked.published, "codecs")
    totals = tables.total("bits_per_change", scope=None)
    sources = sorted(set(totals["source"]), reverse=True)[:2] if len(totals) else []
    figure, axes = plots.start(__file__, 7.2, 4.2, columns=2)
    mean = totals.groupby("scope")["mean"].mean() if len(totals) else {}
    order = sorted(mean.index, key=lambda codec: mean[codec]) if len(totals) else []
    for index, ax in enumerate(axes):
        if index >= len(sources):
            plots.blank(ax)
            continue
        bits(ax, tables, sources[index], order, published)
        ax.set_title(f"{'ab'[index]}  {sources[index].replace('_', ' ')}")
        if index:
            ax.set_yticklabels([])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=4)
    note = "Marks: mean over the versions coded (strokes; slow codecs code fewer) of one run; crosses: published."
    plots.save(figure, __file__, asked, note)


if __name__ == "__main__":
    main()
