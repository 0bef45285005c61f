"""Speed of every codec as a multiple of comparing two equal versions: encoding above, decoding below, a row a codec."""

from thinwire_lab.analysis import plots

SIDES = {
    "encode": {"marker": "o", "color": "#c0561f", "label": "compare and encode"},
    "decode": {"marker": "D", "color": plots.INK, "markerfacecolor": "white", "label": "decode and apply in place"},
}
REACHES = {("encode", "relative"): 0.5, ("encode", "context"): 0.3, ("decode", "context"): 0.3}
PUBLIC = {"encode": "published_zstd1", "decode": "public_decode"}
OFFSET = {"encode": -0.16, "decode": 0.16}


def speeds(ax, tables, source, order, published):
    for side, look in SIDES.items():
        rows = tables.total(f"{side}_over_equal", scope=None)
        rows = rows[rows["source"] == source].set_index("scope")["mean"]
        places = [place + OFFSET[side] for place, codec in enumerate(order) if codec in rows.index]
        values = [rows[codec] for codec in order if codec in rows.index]
        ax.plot(values, places, linestyle="none", **look)
        for (of, codec), reach in REACHES.items():
            if of == side and codec in order:
                place = order.index(codec) + OFFSET[side]
                ax.plot(reach, place, linestyle="none", marker="|", markersize=9, markeredgewidth=1.4, color="0.35")
        theirs = published[(published["what"] == side) & (published["source_chain"] == source)]
        if PUBLIC[side] in order:
            ratios = theirs["gb_per_second"] / theirs["equal_gb_per_second"]
            place = order.index(PUBLIC[side]) + OFFSET[side]
            ax.plot(ratios, [place] * len(ratios), linestyle="none", marker="x", color=plots.PUBLISHED, markersize=5)
    ax.axvline(1, color="0.25", linewidth=1.2, linestyle=(0, (4, 2)), zorder=1)
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.set_xlim(low / 1.2, max(high, 1.2) * 1.2)
    ticks = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)
    inside = [tick for tick in ticks if ax.get_xlim()[0] <= tick <= ax.get_xlim()[1]]
    ax.set_xticks(inside, labels=[f"{tick:g}" for tick in inside])
    ax.minorticks_off()
    ax.set_yticks(range(len(order)), labels=[codec.replace("_", " ") for codec in order])
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlabel("multiples of the speed of torch.equal")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "patch_codec")
    published = plots.read_published(asked.published, "codec_speeds")
    decoding = tables.total("decode_over_equal", scope=None)
    sources = sorted(set(decoding["source"]), reverse=True)[:2] if len(decoding) else []
    mean = decoding.groupby("scope")["mean"].mean() if len(decoding) else {}
    order = sorted(mean.index, key=lambda codec: -mean[codec]) if len(decoding) else []
    figure, axes = plots.start(__file__, 7.2, 4.4, columns=2)
    for index, ax in enumerate(axes):
        if index >= len(sources):
            plots.blank(ax)
            continue
        speeds(ax, tables, sources[index], order, published)
        ax.set_title(f"{'ab'[index]}  {sources[index].replace('_', ' ')}")
        if index:
            ax.set_yticklabels([])
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2)
    note = (
        "Medians of repeats, each paired with torch.equal in the same repeat (dashed line); strokes: what is to be "
        "reached; crosses: the public implementation elsewhere."
    )
    plots.save(figure, __file__, asked, note)


if __name__ == "__main__":
    main()
