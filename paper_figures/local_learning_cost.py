"""What local learning costs and gains on equal cores: bytes trained a second, and peak memory."""

from thinwire_lab.analysis import plots

BASELINE = "global_backprop"
ASYNC = "rgc_async"
PANELS = (
    ("a  Throughput", "throughput", "throughput", 1e3, "kB trained a second", "throughput_ratio"),
    ("b  Peak memory", "memory", "peak_pss", 1e6, "MB, summed over processes", "memory_ratio"),
)


def label(scope):
    arm, _, threads = scope.rpartition("_")
    named = {"global_backprop": "global", "rgc_async": "RGC, asynchronous"}
    if threads.isdigit():
        return f"{named.get(arm, arm)}, {threads} thread{'' if threads == '1' else 's'}"
    return named.get(scope, scope.replace("_", " "))


def panel(ax, tables, published, asked):
    title, part, measure, unit, axis, name = asked
    totals = plots.where(tables.total(measure, scope=None), part=part)
    if totals.empty:
        plots.blank(ax)
        return
    totals = totals.sort_values("mean").reset_index(drop=True)
    for column in ("mean", "lower", "upper"):
        totals[column] = totals[column] / unit
    for place in range(len(totals)):
        ours = totals["scope"][place] == ASYNC
        look = {"fmt": "D" if ours else "o", "color": "#c0561f" if ours else plots.INK}
        plots.error_bars(ax, [place], totals.iloc[[place]], horizontal=True, **look)
    base = totals[totals["scope"].str.startswith(BASELINE)]["mean"]
    if len(base):
        value = float(base.max()) * plots.headline(published, name)
        plots.published_line(ax, value, f"published: {plots.headline(published, name):g} x global", horizontal=False)
    ax.set_yticks(range(len(totals)), labels=[label(scope) for scope in totals["scope"]])
    ax.set_ylim(-0.6, len(totals) - 0.4)
    ax.set_xlim(left=0)
    ax.set_xlabel(axis)
    ax.set_title(title)


def main():
    asked = plots.arguments()
    tables = plots.read_tables(asked.summaries, "local_learning")
    figure, axes = plots.start(__file__, 7.2, 2.6, columns=2)
    for ax, described in zip(axes, PANELS, strict=True):
        panel(ax, tables, asked.published, described)
    plots.save(figure, __file__, asked, "Means with 95 % t intervals over seeds; open marks: a single run.")


if __name__ == "__main__":
    main()
