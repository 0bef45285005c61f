"""The job graph: every target plans at every scale, and the rule files are clean. Nothing is run here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_lab.config import load_config
from thinwire_lab.plan import plan_all
from thinwire_lab.provenance import SOURCES

ROOT = SOURCES.parent
CONFIG = load_config(ROOT / "configs" / "config.yaml")


def snakemake(*words, folder=ROOT):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=folder, capture_output=True, text=True, timeout=240, check=False, env=environment,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_reproduce_all_plans_every_run(scale, tmp_path):
    code, text = snakemake(
        "reproduce-all", "--dry-run", "--forceall", "--quiet", "rules", "--config", f"scale={scale}",
        "--snakefile", str(ROOT / "Snakefile"), "--directory", str(copy_of_project(tmp_path)),
    )  # fmt: skip
    assert code == 0, text
    counts = {
        words[0]: int(words[1])
        for words in (line.split() for line in text.splitlines())
        if len(words) == 2 and words[1].isdigit()
    }
    plan = plan_all(CONFIG.studies, scale, ROOT / "configs")
    for study, rows in plan.items():
        assert sum(n for name, n in counts.items() if name in (f"run_{study}", f"run_{study}_versions")) == len(rows)
    assert not [name for name in counts for study in CONFIG.searches if name.startswith(f"run_{study}")]
    assert counts["judge"] == counts["report"] == counts["reproduce-all"] == 1


def copy_of_project(folder):
    """A work folder with the project's inputs and no results."""
    for name in ("configs", "docs", "paper_figures"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.mark.parametrize("study", CONFIG.planned)
def test_a_study_is_a_target_of_its_own(study, tmp_path):
    code, text = snakemake(
        study, "--dry-run", "--quiet", "rules", "--config", "scale=smoke",
        "--snakefile", str(ROOT / "Snakefile"), "--directory", str(copy_of_project(tmp_path)),
    )  # fmt: skip
    assert code == 0, text
    assert f"summarise_{study}" in text
    assert "judge" not in text


@pytest.mark.parametrize("study", CONFIG.planned)
def test_the_slurm_profile_plans_every_study_at_paper_scale(study, tmp_path):
    code, text = snakemake(
        study, "--dry-run", "--workflow-profile", str(ROOT / "profiles" / "slurm"), "--config", "scale=paper",
        "--snakefile", str(ROOT / "Snakefile"), "--directory", str(copy_of_project(tmp_path)),
    )  # fmt: skip
    assert code == 0, text
    assert f"run_{study}" in text


def test_an_unknown_scale_is_refused():
    code, text = snakemake("reproduce-all", "--dry-run", "--config", "scale=galaxy")
    assert code != 0
    assert "'smoke', 'laptop' or 'paper'" in text


def test_lint_finds_nothing():
    code, text = snakemake("--lint", "--config", "scale=smoke")
    assert code == 0, text


def test_the_rule_files_are_formatted():
    done = subprocess.run(
        [sys.executable, "-m", "snakefmt", "--check", "Snakefile", "workflow"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
