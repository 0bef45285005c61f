"""The histogram of an asset's weight magnitudes before and after dithering, from its ``magnitudes.json``.

Whether an update is visible in BF16 depends on the size of the weight that it meets, so the page on assets shows what
dithering did to that distribution.
"""

import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt


def draw_magnitudes(counts: Path, style: Path, out: Path) -> None:
    """Draw share of weights against magnitude, on logarithmic axes, for all weights and for the embedding, as a PNG.

    ``counts`` is the asset's JSON: ``edges`` (bins by magnitude) and, ``before`` and ``after``, ``counts`` and
    ``total`` by group of tensors. Weights of exactly zero stand in no bin and are named in the legend.
    """
    table = json.loads(counts.read_text(encoding="utf-8"))
    edges = table["edges"]
    mpl.use("agg")
    plt.rcdefaults()
    plt.style.use(style)
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 2.8), sharey=True)
    for ax, group in zip(axes, ("all", "embedding"), strict=True):
        for when, look in (("before", {"color": "0.55", "linestyle": "-"}), ("after", {"color": "#14213d"})):
            mine = table[when][group]
            shares = [count / mine["total"] for count in mine["counts"]]
            label = f"{when} dithering ({mine['exact_zeros']:,} exact zeros)"
            ax.stairs(shares, edges, label=label, linewidth=1.2, **look)
        ax.set(xscale="log", yscale="log", xlim=(1e-6, 16), xlabel="magnitude of a weight", title=f"{group} weights")
        ax.legend(fontsize=6, loc="upper left")
    axes[0].set_ylabel("share of weights in a bin")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Software": None})
    plt.close(figure)
