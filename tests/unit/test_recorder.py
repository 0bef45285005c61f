"""A run's tables: exact values, clocks apart, whole or not at all, the same with and without the mirror."""

import json
import time

import numpy as np
import pytest

from thinwire_lab import provenance
from thinwire_lab.plan import Row
from thinwire_lab.recorder import Recorder
from thinwire_lab.tables import METRICS, write_rows, write_text


def row(**changes):
    values = {
        "study": "update_sparsity", "scale": "smoke", "run": "lr=3e-06,seed=7", "cell": "lr=3e-06", "seed": 7,
        "config": {"lr": 3e-06}, "threads": 1, "timed": False, "gpus": 0, "memory_mb": 500, "minutes": 1,
        "asynchronous": False, "keeps_versions": False, "needs": {}, "seconds": 1.0,
    }  # fmt: skip
    return Row(**{**values, **changes})


CLOCKED = next(name for name, metric in METRICS.items() if metric.clock)


def make(folder, wandb="disabled", **changes):
    record = Recorder(row(**changes), folder, assets=folder, inputs={}, versions=None, wandb=wandb)
    record.record(0, "reward", 0.1 + 0.2)
    record.record(1, "reward", 1, scope="half")
    record.record(0, CLOCKED, 2.5)
    record.note("pairs", 3)
    record.finish()
    return folder


def test_values_are_exact_and_clocks_stand_apart(tmp_path):
    make(tmp_path)
    assert (tmp_path / "metrics.csv").read_text() == (
        "step,scope,metric,value\n0,all,reward,0.30000000000000004\n1,half,reward,1.0\n"
    )
    assert (tmp_path / "clock.csv").read_text() == f"step,scope,metric,value\n0,all,{CLOCKED},2.5\n"


def test_an_asynchronous_run_has_no_repeatable_table(tmp_path):
    make(tmp_path, asynchronous=True)
    assert (tmp_path / "metrics.csv").read_text() == "step,scope,metric,value\n"
    assert "reward" in (tmp_path / "clock.csv").read_text()


def test_the_record_says_where_the_numbers_come_from(tmp_path):
    made = json.loads((make(tmp_path) / "run.json").read_text())
    assert made["row"]["config"] == {"lr": 3e-06}
    assert made["source_digest"] == provenance.study_digest("update_sparsity")
    assert made["libraries"]["torch"].startswith("2.13.0")
    assert made["notes"] == {"pairs": 3}
    assert made["seconds"] >= 0
    assert made["peak_memory_bytes"] > 0
    assert set(made["machine"]) == {"cpu", "cores", "memory", "load", "system"}


def test_the_mirror_changes_no_table(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    plain, mirrored = make(tmp_path / "plain"), make(tmp_path / "mirrored", wandb="offline")
    for name in ("metrics.csv", "clock.csv"):
        assert (plain / name).read_bytes() == (mirrored / name).read_bytes()
    (kept,) = (mirrored / "wandb").glob("offline-run-*/run-*.wandb")
    deadline = time.monotonic() + 30
    while b"lr=3e-06" not in (content := kept.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)  # another process writes the file, at its leisure
    assert b"update_sparsity" in content
    assert b"lr=3e-06" in content


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_only_finite_values_are_recorded(tmp_path, value):
    record = Recorder(row(), tmp_path, assets=tmp_path, inputs={}, versions=None, wandb="disabled")
    with pytest.raises(ValueError, match="reward at step 3"):
        record.record(3, "reward", value)


def test_an_undeclared_metric_is_refused(tmp_path):
    record = Recorder(row(), tmp_path, assets=tmp_path, inputs={}, versions=None, wandb="disabled")
    with pytest.raises(KeyError, match="'rewrad' is not declared"):
        record.record(0, "rewrad", 1.0)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "table.csv"
    write_text(path, "old")

    def rows():
        yield (1,)
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        write_rows(path, ("a",), rows())
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["table.csv"]


def test_a_number_of_numpy_is_written_as_the_double_it_is(tmp_path):
    write_rows(tmp_path / "table.csv", ("a", "b"), [(np.float64(0.1), np.int64(3))])
    assert (tmp_path / "table.csv").read_text() == "a,b\n0.1,3\n"


def test_every_metric_has_a_unit_and_a_description():
    assert METRICS
    for metric in METRICS.values():
        assert metric.unit, metric.name
        assert metric.description, metric.name
