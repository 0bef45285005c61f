"""The workflow as a person meets it: it runs, it fails loudly, it is killed, it resumes, and it then has nothing to do.

The study is a real one, cut to two short runs on a text made here.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from thinwire_lab.provenance import SOURCES

ROOT = SOURCES.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_bytes()


@pytest.fixture
def project(tmp_path):
    """A work folder with one study of two quick runs and the texts that they read."""
    for name in ("Snakefile", "workflow", "docs", "paper_figures", "profiles", "environment.yml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "configs" / "studies").mkdir(parents=True)
    for name in ("figures.yaml", "claims.yaml", "published"):
        (tmp_path / "configs" / name).symlink_to(ROOT / "configs" / name)
    (tmp_path / "configs" / "config.yaml").write_text("scale: smoke\nstudies: [local_learning]\nwandb: offline\n")
    study = yaml.safe_load((ROOT / "configs" / "studies" / "local_learning.yaml").read_text())
    study["scales"]["smoke"]["grid"] = [
        {
            "axes": {
                "part": ["quality"],
                "arm": ["global_backprop", "local_independent"],
                "text": ["enwiki"],
                "seed": [0],
            },
            "seconds": 8,
        }
    ]
    (tmp_path / "configs" / "studies" / "local_learning.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    for text in ("enwiki", "stories"):
        folder = tmp_path / "assets" / "texts" / text
        folder.mkdir(parents=True)
        for part in ("train", "validation", "test"):
            np.frombuffer(TEXT * 20, dtype=np.uint8).tofile(folder / f"{part}.bin")
    (tmp_path / "assets" / "texts" / "asset.json").write_text("{}\n")
    return tmp_path


def start(folder, *words):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = [sys.executable, "-m", "snakemake", "--cores", "1", *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def finish(folder, *words):
    process = start(folder, *words)
    text, _ = process.communicate(timeout=200)
    return process.returncode, text


def test_killed_it_resumes_and_then_has_nothing_to_do(project):
    process = start(project, "summarise_local_learning")
    for line in process.stdout:
        if "started" in line:
            break
    time.sleep(2)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=20)
    assert not alive, "a run outlived the workflow that started it"
    runs = project / "results" / "smoke" / "runs" / "local_learning"
    assert not list(runs.glob("*/*.csv"))

    code, text = finish(project, "summarise_local_learning")
    assert code == 0, text
    assert "2 of 2 runs finished, all runs done" in text
    summaries = project / "results" / "smoke" / "summaries" / "local_learning"
    assert (summaries / "seeds.csv").read_text().count("\n") > 2
    assert not list((project / "results").rglob("*.part"))

    code, text = finish(project, "summarise_local_learning")
    assert code == 0, text
    assert "Nothing to be done" in text


def test_a_failing_run_is_named_with_its_reason_and_log_and_the_rest_goes_on(project):
    path = project / "configs" / "studies" / "local_learning.yaml"
    study = yaml.safe_load(path.read_text())
    study["scales"]["smoke"]["grid"].append(
        {"axes": {"part": ["quality"], "arm": ["sideways"], "text": ["enwiki"], "seed": [0]}, "seconds": 8}
    )
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    code, text = finish(project, "summarise_local_learning", "--keep-going")
    assert code != 0
    (failed,) = [line for line in text.splitlines() if "FAILED" in line]
    assert failed.startswith("local_learning  part=quality,arm=sideways,text=enwiki,seed=0  FAILED: ValidationError")
    (log,) = [line.split("log: ")[1] for line in text.splitlines() if line.startswith("    log: ")]
    assert "Traceback" in (project / log).read_text()
    runs = project / "results" / "smoke" / "runs" / "local_learning"
    assert {path.parent.name for path in runs.glob("*/run.json")} == {
        "part=quality,arm=global_backprop,text=enwiki,seed=0",
        "part=quality,arm=local_independent,text=enwiki,seed=0",
    }


def test_two_workflows_at_one_result_refuse_each_other(project):
    process = start(project, "summarise_local_learning")
    for line in process.stdout:
        if "started" in line:
            break
    code, text = finish(project, "summarise_local_learning")
    os.killpg(process.pid, signal.SIGKILL)
    process.stdout.close()
    process.wait()
    assert code != 0
    assert "another workflow is at results/smoke" in text
