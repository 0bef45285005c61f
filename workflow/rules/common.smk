"""What all files here need: the scale, the plan, paths, and the functions that inputs and parameters ask."""

import json
import os
import re
import sys
from pathlib import Path

import yaml
from thinwire_lab import progress, provenance
from thinwire_lab.assets import registry
from thinwire_lab.config import LabConfig, load_study
from thinwire_lab.plan import plan_all

FROM_SUMMARIES = str(config.pop("from_summaries", "false")).lower() == "true"
LAB_CONFIG = LabConfig.model_validate(config)
SCALE = LAB_CONFIG.scale
STUDIES = LAB_CONFIG.planned
REPORTED = LAB_CONFIG.studies
RESULTS = f"results/{SCALE}"
ENVIRONMENT = "../../environment.yml"

# These change no table, so no job has them among its parameters and a change of them reruns nothing.
os.environ.update(
    THINWIRE_WANDB=LAB_CONFIG.wandb,
    PATH=os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    ),
)

PLAN = {} if FROM_SUMMARIES else plan_all(STUDIES, SCALE)
ROWS = {(row.study, row.run): row for rows in PLAN.values() for row in rows}
FIGURES = yaml.safe_load(Path("configs/figures.yaml").read_text(encoding="utf-8"))

ASSET_FILES = {name: f"assets/{name}/asset.json" for name in registry.ASSETS}
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
    return all(study in REPORTED for study in FIGURES[figure]["summaries"])


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
    return [
        f"{run_folder(study, run)}/run.json" for study, run in ROWS if study in REPORTED
    ]


def run_inputs(study):
    assets = [ASSET_FILES[name] for name in load_study(study).assets_at(SCALE)]

    def inputs(wildcards):
        needed = ROWS[study, wildcards.run].needs.values()
        return assets + [f"{RESULTS}/versions/{source}/{run}" for source, run in needed]

    return inputs


def cores_of(study):
    """A timed row takes the whole machine, so that no other job spoils its stopwatch; a cluster's node is its own."""

    def threads(wildcards):
        row = ROWS[study, wildcards.run]
        return workflow.cores if row.timed and workflow.cores else row.threads

    return threads


def field_of(study, field):
    return lambda wildcards: getattr(ROWS[study, wildcards.run], field)


def runs_of(study):
    return [
        f"{run_folder(row.study, row.run)}/{file}"
        for row in PLAN[study]
        for file in RUN_FILES
    ]


def figure_inputs(wildcards):
    tables = [table for table in SUMMARY_TABLES if table.endswith(".csv")]
    return expand(
        "{results}/summaries/{study}/{table}",
        results=RESULTS,
        study=FIGURES[wildcards.figure]["summaries"],
        table=tables,
    )
