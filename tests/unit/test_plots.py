"""What the figures share: axes read off cells, intervals, and files that are the same bytes each time."""

from types import SimpleNamespace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from thinwire_lab.analysis import plots


def test_axes_are_read_off_the_cell():
    assert plots.axes_of("lr=3e-06,precision=bf16") == {"lr": "3e-06", "precision": "bf16"}
    assert plots.axes_of("") == {}


@pytest.fixture
def script(tmp_path):
    (tmp_path / "drawing.py").write_text("")
    (tmp_path / "paper.mplstyle").write_text("font.size: 9\n")
    return str(tmp_path / "drawing.py")


ROWS = pd.DataFrame(
    {"mean": [1.0, 2.0], "lower": [0.5, float("nan")], "upper": [1.5, float("nan")], "step": [0, 1], "n": [3, 1]}
)


def draw(script, out):
    figure, (left, right) = plots.start(script, 4, 2, columns=2)
    plots.error_bars(left, [0, 1], ROWS, fmt="o", color="k", label="mean")
    plots.published_line(left, 1.2, "published")
    plots.band(left, ROWS, plots.style(1), label="curve")
    plots.blank(right)
    plots.save(figure, script, SimpleNamespace(out=out, scale="laptop"), "note")


def test_files_are_named_after_the_script_and_the_same_bytes_each_time(script, tmp_path):
    for name in ("one", "two"):
        draw(script, tmp_path / name)
    for name in ("drawing.pdf", "drawing.png"):
        first = (tmp_path / "one" / name).read_bytes()
        assert first == (tmp_path / "two" / name).read_bytes()
        assert b"CreationDate" not in first
    assert plt.get_fignums() == []


def test_a_mean_without_an_interval_is_an_open_mark(script):
    _, ax = plots.start(script, 4, 2)
    plots.error_bars(ax, [0, 1], ROWS, fmt="o", color="k", label="mean")
    marks = [container.lines[0] for container in ax.containers]
    assert [mark.get_markerfacecolor() for mark in marks] == ["k", "white"]
    assert [bool(container.lines[2]) for container in ax.containers] == [True, False]
    assert ax.get_legend_handles_labels()[1] == ["mean"]
    plt.close("all")
