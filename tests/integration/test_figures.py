"""Every figure is drawn at every scale from summaries of the planned cells, the same bytes each time."""

import runpy
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import yaml

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.summarise import RunFiles, summarise
from thinwire_lab.config import load_config, load_study
from thinwire_lab.plan import plan_study
from thinwire_lab.tables import METRICS, RUN_COLUMNS, write_rows

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
FIGURES = yaml.safe_load((CONFIGS / "figures.yaml").read_text(encoding="utf-8"))
STUDIES = load_config(CONFIGS / "config.yaml").studies
STEPS = (-1, 0, 1, 2, 8)


def declared(study):
    """The metrics of a study, with the scopes that its measures name."""
    module = __import__(f"thinwire_lab.metrics.{study}", fromlist=["METRICS"])
    return [metric.name for metric in module.METRICS]


def scopes_of(study):
    """Scopes that stand for those of a real run."""
    measures = load_study(study, CONFIGS).measures
    named = {measure.scope for measure in measures} - {"*"}
    known = {
        "patch_codec": ["published_zstd1", "relative", "pairs_raw"],
        "weight_sync": ["full", "patch", "published"],
        "local_learning": ["rgc_async", "global_backprop", "global_backprop_1", "global_backprop_2"],
    }
    return sorted({"all", *named, *known.get(study, [])})


def number(*parts):
    """A positive number that depends on the parts and on nothing else."""
    return 0.05 + (zlib.crc32(repr(parts).encode()) % 900) / 1000


def summaries_of(study, scale, folder):
    runs, scopes = [], scopes_of(study)
    for row in plan_study(study, scale, CONFIGS):
        place = folder / "runs" / study / row.run
        rows = [
            (step, scope, metric, number(study, row.cell, row.seed, metric, scope, step))
            for metric in declared(study)
            for scope in scopes
            for step in STEPS
        ]
        for name, clock in (("metrics", False), ("clock", True)):
            mine = [entry for entry in rows if (row.asynchronous or METRICS[entry[2]].clock) is clock]
            write_rows(place / f"{name}.csv", RUN_COLUMNS, mine)
        runs.append(RunFiles(row.cell, row.seed, place / "metrics.csv", place / "clock.csv", place / "run.json"))
    measures = load_study(study, CONFIGS).model_dump(mode="json")["measures"]
    summarise({"name": study, "measures": measures}, runs, folder / "summaries" / study)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """Scale -> folder of summaries of every study."""
    folders = {}
    for scale in ("smoke", "laptop"):
        folder = tmp_path_factory.mktemp(scale)
        for study in STUDIES:
            summaries_of(study, scale, folder)
        folders[scale] = folder / "summaries"
    return folders


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


def test_a_script_called_by_hand_gives_the_same_bytes_each_time(made, tmp_path):
    name = next(iter(FIGURES))
    for folder in ("one", "two"):
        script = [sys.executable, str(ROOT / "paper_figures" / f"{name}.py")]
        subprocess.run([*script, *arguments(made, "smoke", tmp_path / folder)], check=True, timeout=120)
    for kind in ("pdf", "png"):
        first, second = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
        assert first.read_bytes() == second.read_bytes()
