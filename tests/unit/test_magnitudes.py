"""The picture of weight magnitudes: drawn from the asset's own counts, the same bytes each time."""

import json

from thinwire_lab.analysis.magnitudes import draw_magnitudes
from thinwire_lab.provenance import SOURCES

STYLE = SOURCES.parent / "paper_figures" / "paper.mplstyle"


def test_the_same_counts_give_the_same_bytes(tmp_path):
    group = {"total": 100, "exact_zeros": 3, "counts": [10, 60, 27]}
    table = {"edges": [1e-4, 1e-2, 1.0, 16.0], "before": {"all": group, "embedding": group}}
    table["after"] = {name: {**group, "exact_zeros": 0} for name in ("all", "embedding")}
    (tmp_path / "magnitudes.json").write_text(json.dumps(table))
    for name in ("one", "two"):
        draw_magnitudes(tmp_path / "magnitudes.json", STYLE, tmp_path / f"{name}.png")
    first, second = ((tmp_path / f"{name}.png").read_bytes() for name in ("one", "two"))
    assert first.startswith(b"\x89PNG")
    assert first == second
