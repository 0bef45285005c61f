"""A clone holds summaries and no runs: figures and report are redrawn from them without training anything."""

import json
import os
import subprocess
import sys
from pathlib import Path

from thinwire_lab import provenance
from thinwire_lab.config import load_config

ROOT = provenance.SOURCES.parent


def test_figures_and_report_are_redrawn_without_a_run(planned_summaries, tmp_path):
    for name in ("Snakefile", "workflow", "docs", "paper_figures", "profiles", "configs", "environment.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "results").mkdir()
    results = tmp_path / "results" / "smoke"
    results.symlink_to(planned_summaries("smoke"))
    for study in load_config(ROOT / "configs" / "config.yaml").studies:
        source = {
            "source_digests": [provenance.study_digest(study)],
            "runs": 1,
            "commits": [],
            "machines": [],
            "seconds": 1,
        }
        (results / "summaries" / study / "source.json").write_text(json.dumps(source))
    makefile = (ROOT / "Makefile").read_text()
    assert "from_summaries=true --forceall -- figures report" in makefile
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "--config", "scale=smoke", "from_summaries=true",
         "--forceall", "--", "figures", "report"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started" not in done.stdout
    assert not list(results.glob("runs/*/*/run.json"))
    page = (results / "report.html").read_text()
    assert "P-sparsity-step" in page
    claims = (results / "claims.csv").read_text().splitlines()
    assert claims[0] == "id,verdict,study,cell,scale,n,unit,estimate,lower,upper,level,rule,reason"
    assert len(claims) == 20
    assert len(list(results.glob("figures/*.png"))) == len(list((ROOT / "paper_figures").glob("*.py")))
