"""Bits a changed weight under every codec, how far that is from the entropy bound, and what it costs in time."""

from thinwire_lab.analysis import plots

OWN = ("absolute", "relative", "dense", "auto")


PUBLISHED_LAYOUT = "coo-gaps"  # measured there on differences of values, which are easier to compress


def kind(codec):
    return "own" if codec in OWN else "published" if codec.startswith("published") else "plain"


LOOKS = {
    "own": {"marker": "o", "color": "#c0561f"},
    "published": {"marker": "s", "color": plots.INK},
    "plain": {"marker": "^", "color": "#8d8d8d"},
}
LABELS = {"own": "this library's encodings", "published": "published layout", "plain": "plain layouts"}


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
        plots.published_line(ax, value, f"conditional entropy {value:.2f}", horizontal=False)
    ax.set_xscale("log")
    ax.set_xticks([2, 4, 8, 16, 32], labels=["2", "4", "8", "16", "32"])
    ax.minorticks_off()
    ax.set_yticks(range(len(order)), labels=[codec.replace("_", " ") for codec in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.margins(x=0.18)
    ax.set_xlabel("bits a changed weight")


def speed(ax, tables, source):
    sides = [tables.total(name, scope=None) for name in ("encode_rate", "decode_rate")]
    sides = [rows[rows["source"] == source].set_index("scope")["mean"] / 1e9 for rows in sides]
    shared = sorted(set(sides[0].index) & set(sides[1].index))
    if not shared:
        plots.blank(ax)
        return
    for codec in shared:
        ax.plot(sides[0][codec], sides[1][codec], linestyle="none", **LOOKS[kind(codec)])
        ax.annotate(
            codec.replace("published_", "").replace("_", " "),
            (sides[0][codec], sides[1][codec]),
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=5.5,
        )
    equal = tables.total("equal_rate")
    equal = equal[equal["source"] == source]["mean"] / 1e9
    if len(equal):
        plots.published_line(ax, float(equal.iloc[0]), "comparing equal copies", horizontal=False)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.margins(x=0.25, y=0.12)
    ticks = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
    for axis, set_ticks in ((ax.get_xlim(), ax.set_xticks), (ax.get_ylim(), ax.set_yticks)):
        inside = [tick for tick in ticks if axis[0] <= tick <= axis[1]]
        set_ticks(inside, labels=[f"{tick:g}" for tick in inside])
    ax.minorticks_off()
    ax.set(xlabel="encode, GB of weights a second", ylabel="decode, GB of weights a second")
    ax.set_title("c  Speed")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "patch_codec")
    published = plots.read_published(asked.published, "codecs")
    totals = tables.total("bits_per_change", scope=None)
    sources = sorted(set(totals["source"]), reverse=True)[:2] if len(totals) else []
    figure, axes = plots.start(__file__, 7.2, 3.6, columns=3)
    mean = totals.groupby("scope")["mean"].mean() if len(totals) else {}
    order = sorted(mean.index, key=lambda codec: mean[codec]) if len(totals) else []
    for index, ax in enumerate(axes[:2]):
        if index >= len(sources):
            plots.blank(ax)
            continue
        bits(ax, tables, sources[index], order, published)
        ax.set_title(f"{'ab'[index]}  {sources[index].replace('_', ' ')}")
        if index:
            ax.set_yticklabels([])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=3)
    if sources:
        speed(axes[2], tables, sources[0])
    else:
        plots.blank(axes[2])
    note = "Marks: mean over consecutive versions of one run; strokes: single versions; crosses: published."
    plots.save(figure, __file__, asked, note)


if __name__ == "__main__":
    main()
