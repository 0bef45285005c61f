"""One thread a test process, no hub, no tracker server, the same examples at every run, and summaries to draw from."""

import os
import time
import zlib
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "agg")

import psutil  # noqa: E402 - after the environment is set
import pytest  # noqa: E402
import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

from thinwire_lab.analysis.summarise import RunFiles, summarise  # noqa: E402
from thinwire_lab.config import load_config, load_study  # noqa: E402
from thinwire_lab.plan import plan_study  # noqa: E402
from thinwire_lab.tables import METRICS, RUN_COLUMNS, write_rows  # noqa: E402

CONFIGS = Path(__file__).parents[1] / "configs"

torch.set_num_threads(1)
settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")

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
        "local_learning": ["rgc_async", "global_backprop", "judged", "threads", "groups", "locking", "readout"]
        + ["global_backprop_1x1", "global_backprop_1x2", "global_ddp_2x1", "global_1f1b_2x1", "local_async_2x1"]
        + ["rgc_async_2x1", "rgc_async_2x1_staleness_0", "rgc_async_4x1"]
        + [f"segment_00{place}" for place in range(4)],
        "interval_coverage": ["paired-t", "two-way-t", "percentile", "crossed", "bootstrap-t", "pooled"],
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
def planned_summaries(tmp_path_factory):
    """Make, for a scale, a results folder with the summaries of every planned cell, of numbers that mean nothing."""

    def make(scale):
        folder = tmp_path_factory.mktemp(scale)
        for study in load_config(CONFIGS / "config.yaml").studies:
            summaries_of(study, scale, folder)
        return folder

    return make


@pytest.fixture
def nothing_left():
    """No child process and no name in shared memory may outlive a test."""
    names = set(Path("/dev/shm").iterdir())
    yield
    deadline = time.monotonic() + 5
    left = [None]
    while left and time.monotonic() < deadline:
        left = [p for p in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())]
        time.sleep(0.05)
    assert not left
    assert set(Path("/dev/shm").iterdir()) <= names
