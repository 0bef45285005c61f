"""What every rule file needs: the scale, the plan, digests of the code, and the lock of the workflow."""

import fcntl
import json
import re
import sys
from pathlib import Path

import yaml
from thinwire_lab import progress, provenance
from thinwire_lab.config import LabConfig, load_study
from thinwire_lab.plan import plan_all

FROM_SUMMARIES = str(config.pop("from_summaries", "false")).lower() == "true"
LAB_CONFIG = LabConfig.model_validate(config)
SCALE = LAB_CONFIG.scale
STUDIES = LAB_CONFIG.studies
RESULTS = f"results/{SCALE}"
LAB = f"{sys.executable} -m thinwire_lab.cli"
ENVIRONMENT = "../../environment.yml"

PLAN = {} if FROM_SUMMARIES else plan_all(STUDIES, SCALE)
ROWS = {(row.study, row.run): row for rows in PLAN.values() for row in rows}
FIGURES = yaml.safe_load(Path("configs/figures.yaml").read_text(encoding="utf-8"))

RUN_FILES = ("metrics.csv", "clock.csv", "run.json")
SUMMARY_TABLES = (
    "seeds.csv",
    "totals.csv",
    "curves.csv",
    "traces.csv",
    "clock_seeds.csv",
    "clock_totals.csv",
    "clock_curves.csv",
    "source.json",
)


def run_folder(study, run):
    return f"{RESULTS}/runs/{study}/{run}"


def figure_files(figure):
    return [f"{RESULTS}/figures/{figure}.{kind}" for kind in ("pdf", "png")]


def figures_of(study):
    """Figures drawn from the summaries of this study alone."""
    return [
        name
        for name, figure in FIGURES.items()
        if figure["summaries"] == [study] and study in STUDIES
    ]


def drawable(figure):
    return all(study in STUDIES for study in FIGURES[figure]["summaries"])


DRAWN = [figure for figure in FIGURES if drawable(figure)]
FIGURE_FILES = [file for figure in DRAWN for file in figure_files(figure)]
# the committed scale has a copy of each figure beside its script
PAPER_FIGURES = (
    [f"paper_figures/{Path(file).name}" for file in FIGURE_FILES]
    if SCALE == "laptop"
    else []
)


def all_records(wildcards):
    """The record of every planned run, so that a clone without runs makes them even where summaries stand."""
    return [f"{run_folder(study, run)}/run.json" for study, run in ROWS]


onstart:
    # The kernel frees this lock when its holder ends, however it ends: a killed workflow needs no unlocking.
    Path(".snakemake").mkdir(exist_ok=True)
    WORKFLOW_LOCK = open(f".snakemake/thinwire-{SCALE}.lock", "w")
    try:
        fcntl.flock(WORKFLOW_LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(
            f"thinwire: another workflow is at {RESULTS}; wait for it or end it"
        )
    if ROWS:
        print(
            f"thinwire: scale {SCALE}: {progress.sentence(list(ROWS.values()), Path(RESULTS), workflow.cores or 1)}"
        )


onerror:
    print(
        f"thinwire: some runs failed; the lines above name each with its log. Finished runs are kept: call again to resume."
    )
