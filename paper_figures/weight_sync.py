"""Full weights against patches: the same training, fewer bytes, fewer seconds on a slow link."""

from thinwire_lab.analysis import plots

ARMS = {"full": "full weights", "patch": "patches"}


def rewards(ax, tables):
    curves = tables.curve("reward")
    curves = curves[curves["arm"].isin(ARMS)] if "arm" in curves else curves.iloc[:0]
    if curves.empty:
        plots.blank(ax)
        return
    looks = {"full": {"linewidth": 5, "color": "0.8"}, "patch": {"linewidth": 1.2, "color": plots.INK}}
    for arm, look in looks.items():
        mine = curves[curves["arm"] == arm]
        if len(mine):
            rows = mine[mine["cell"] == mine["cell"].iloc[0]].sort_values("step")
            if arm == "patch":
                ax.fill_between(rows["step"], rows["lower"], rows["upper"], color=plots.INK, alpha=0.12, linewidth=0)
            ax.plot(rows["step"], rows["mean"], label=ARMS[arm], **look)
    ax.set(xlabel="optimizer step", ylabel="mean reward")
    ax.legend(loc="lower right")
    ax.set_title("a  Reward")


def sizes(ax, tables, published):
    curves = tables.curve("frame_bytes", scope=None)
    full = tables.curve("full_bytes")
    link = curves[~curves["scope"].isin(["all"])]
    if link.empty or full.empty:
        plots.blank(ax)
        return
    whole = full[full["cell"].isin(link["cell"])].sort_values("step").drop_duplicates("step")
    ax.plot(whole["step"], whole["mean"], color="0.3", linestyle="-", label="full weights")
    ratio = plots.headline(published, "payload_ratio")
    plots.published_line(ax, float(whole["mean"].mean()) / ratio, f"full / {ratio:.0f} (published)")
    for index, (encoding, rows) in enumerate(link.groupby("scope", sort=True)):
        once = rows.sort_values("step").drop_duplicates("step")
        ax.plot(once["step"], once["mean"], label=str(encoding), **plots.style(index))
    ax.set_yscale("log")
    ax.set(xlabel="version", ylabel="bytes")
    ax.set_ylim(top=ax.get_ylim()[1] * 3)
    ax.legend(loc="center right")
    ax.set_title("b  Size of a version")


def seconds(ax, tables):
    curves, totals = tables.curve("pull_seconds", scope=None), tables.total("pull_seconds", scope=None)
    if not len(totals) or not set(ARMS) <= set(totals["scope"]):
        plots.blank(ax)
        return
    for place, arm in enumerate(ARMS):
        versions = curves[curves["scope"] == arm]
        ax.plot([place] * len(versions), versions["mean"], linestyle="none", marker="_", markersize=9, color="0.6")
        rows = totals[totals["scope"] == arm].iloc[:1]
        plots.error_bars(ax, [place], rows, fmt=plots.MARKERS[place], color=plots.INK)
        ax.annotate(f"{rows['mean'].iloc[0]:.3g} s", (place + 0.15, rows["mean"].iloc[0]), va="center", fontsize=7)
    ax.set_xticks([0, 1], labels=list(ARMS.values()))
    ax.set_xlim(-0.5, 1.7)
    ax.set_yscale("log")
    ax.set_ylabel("seconds to pull a version")
    ax.set_title("c  On the slow link")


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "weight_sync")
    figure, (left, middle, right) = plots.start(__file__, 7.2, 2.7, columns=3)
    rewards(left, tables)
    sizes(middle, tables, asked.published)
    seconds(right, tables)
    note = "Means over seeds with 95 % t intervals; strokes: single versions. Published: 14 minutes to seconds."
    plots.save(figure, __file__, asked, note)


if __name__ == "__main__":
    main()
