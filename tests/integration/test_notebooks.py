"""The notebooks run from top to bottom on small summaries, and each pair of files says the same."""

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

from thinwire_lab.analysis.claims import judge
from thinwire_lab.analysis.summarise import RunFiles, summarise
from thinwire_lab.tables import RUN_COLUMNS, Metric, write_rows

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
CLAIMS = """\
claims:
  - id: P-sparsity-step
    statement: Most weights don't change in a step.
    source: a paper
    published: {text: about 99 %}
    study: update_sparsity
    unit: share
    measured: mean over steps, t interval over seeds
    rule: {kind: threshold, measure: step_sparsity, condition: {at_least: 0.989}}
    cells: {smoke: {cell: "precision=bf16,lr=3e-06"}}
"""


@pytest.fixture
def results(tmp_path):
    runs = []
    for seed in range(3):
        place = tmp_path / "runs" / str(seed)
        rows = [(step, "all", "sparsity_1", 0.995 - 0.0001 * step + 0.0002 * seed) for step in range(12)]
        write_rows(place / "metrics.csv", RUN_COLUMNS, rows)
        write_rows(place / "clock.csv", RUN_COLUMNS, [])
        files = place / "metrics.csv", place / "clock.csv", place / "run.json"
        runs.append(RunFiles("precision=bf16,lr=3e-06", seed, *files))
    measures = [{"name": "step_sparsity", "metric": "sparsity_1", "scope": "all", "reduce": "mean"}]
    study = {"name": "update_sparsity", "measures": measures}
    metrics = {"sparsity_1": Metric("sparsity_1", "share", "higher")}
    summarise(study, runs, tmp_path / "summaries" / "update_sparsity", metrics)
    (tmp_path / "claims.yaml").write_text(CLAIMS, encoding="utf-8")
    judge(tmp_path / "claims.yaml", tmp_path / "summaries", "smoke", tmp_path / "claims.csv", lambda study: True)
    return tmp_path


def test_there_is_a_notebook():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_both_files_of_a_pair_say_the_same(path):
    plain, paired = jupytext.read(path), jupytext.read(path.with_suffix(".ipynb"))
    assert [(cell.cell_type, cell.source) for cell in plain.cells] == [
        (cell.cell_type, cell.source) for cell in paired.cells
    ]
    assert all(not cell.get("outputs") for cell in paired.cells)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# the kernel's own libraries warn about their event loop
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs_from_top_to_bottom(path, results, monkeypatch):
    monkeypatch.setenv("THINWIRE_RESULTS", str(results))
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    shown = "\n".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output
    )
    assert "by hand 0.99" in shown
    assert ">= 0.989: holds" in shown
