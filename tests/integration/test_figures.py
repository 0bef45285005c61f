"""Every figure is drawn at every scale from summaries of the planned cells, the same bytes each time."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from thinwire_lab.analysis import plots
from thinwire_lab.config import load_config

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
FIGURES = yaml.safe_load((CONFIGS / "figures.yaml").read_text(encoding="utf-8"))
STUDIES = load_config(CONFIGS / "config.yaml").studies


@pytest.fixture(scope="session")
def made(planned_summaries):
    """Scale -> folder of summaries of every study."""
    return {scale: planned_summaries(scale) / "summaries" for scale in ("smoke", "laptop")}


def arguments(made, scale, out):
    places = ["--summaries", str(made[scale]), "--published", str(CONFIGS / "published")]
    return [*places, "--out", str(out), "--scale", scale]


def draw(name, argv, monkeypatch):
    """Run a script as its own main module, in this process; return the texts of its blank panels."""
    blanks = []
    plain = plots.blank
    monkeypatch.setattr(plots, "blank", lambda ax, *text: (blanks.append(text), plain(ax, *text)))
    monkeypatch.setattr(sys, "argv", [name, *argv])
    script = ROOT / "paper_figures" / f"{name}.py"
    runpy.run_path(str(script), run_name="__main__")
    return blanks


def test_every_figure_has_a_script_and_every_study_a_figure():
    assert {path.stem for path in (ROOT / "paper_figures").glob("*.py")} == set(FIGURES)
    assert {study for figure in FIGURES.values() for study in figure["summaries"]} == set(STUDIES)
    assert all(figure["caption"].strip().endswith(".") for figure in FIGURES.values())


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_shows_every_panel_at_laptop_scale(name, made, tmp_path, monkeypatch):
    assert draw(name, arguments(made, "laptop", tmp_path), monkeypatch) == []
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / f"{name}.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_at_smoke_scale_too(name, made, tmp_path, monkeypatch):
    draw(name, arguments(made, "smoke", tmp_path), monkeypatch)
    assert (tmp_path / f"{name}.png").exists()


@pytest.mark.parametrize("name", [name for name, figure in FIGURES.items() if "local_learning" in figure["summaries"]])
@pytest.mark.parametrize("kept", [(), ("part=quality",), ("part=throughput",), ("part=memory",)])
def test_a_figure_of_local_learning_is_drawn_from_a_part_of_its_rows(name, kept, made, tmp_path, monkeypatch):
    folder = tmp_path / "summaries" / "local_learning"
    folder.mkdir(parents=True)
    for path in (made["laptop"] / "local_learning").glob("*.csv"):
        header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines = [line for line in lines if any(part in line for part in kept)]
        (folder / path.name).write_text("".join([header, *lines]), encoding="utf-8")
    blanks = draw(name, arguments({"laptop": tmp_path / "summaries"}, "laptop", tmp_path), monkeypatch)
    assert blanks or kept
    assert (tmp_path / f"{name}.png").exists()


def test_a_script_called_by_hand_gives_the_same_bytes_each_time(made, tmp_path):
    name = next(iter(FIGURES))
    for folder in ("one", "two"):
        script = [sys.executable, str(ROOT / "paper_figures" / f"{name}.py")]
        subprocess.run([*script, *arguments(made, "smoke", tmp_path / folder)], check=True, timeout=120)
    for kind in ("pdf", "png"):
        first, second = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()
