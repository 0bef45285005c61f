"""The project's goals beside what was measured: met, met on the whole, missed, not tested, stale."""

import math
import runpy

import pytest
import yaml

from thinwire_lab.analysis.reaches import load_reaches, read_reaches, write_reaches
from thinwire_lab.analysis.summarise import CURVES, SEEDS
from thinwire_lab.config import ConfigError
from thinwire_lab.provenance import SOURCES
from thinwire_lab.tables import write_rows

ROOT = SOURCES.parent
SEEDED = {0: 0.2, 1: 0.5, 2: 0.8}
"""Values of a scope with several seeds."""
VALUES = {("ratio", "x"): (0.2, 0.4), ("ratio", "y"): (0.1, 0.9), ("memory", "x"): (70.0, 70.0)}


@pytest.fixture
def judged(tmp_path):
    """Rows of the table by what they are about, for a list of reaches."""
    seeds, curves = [], []
    for (measure, scope), steps in VALUES.items():
        seeds.append(("codec", "source=a", 0, measure, scope, "MiB" if measure == "memory" else "1", sum(steps) / 2))
        curves += [
            ("codec", "source=a", step, scope, measure, "1", 1, value, "", "") for step, value in enumerate(steps)
        ]
    seeds += [("codec", "source=a", seed, "ratio", "seeded", "1", value) for seed, value in SEEDED.items()]
    curves += [("codec", "source=a", step, "seeded", "ratio", "1", 3, 0.5, "", "") for step in range(2)]
    write_rows(tmp_path / "codec" / "seeds.csv", SEEDS, [row for row in seeds if row[3] == "ratio"])
    write_rows(tmp_path / "codec" / "clock_seeds.csv", SEEDS, [row for row in seeds if row[3] == "memory"])
    write_rows(tmp_path / "codec" / "curves.csv", CURVES, [row for row in curves if row[4] == "ratio"])
    write_rows(tmp_path / "codec" / "clock_curves.csv", CURVES, [row for row in curves if row[4] == "memory"])

    def judge(*reaches, fresh=True):
        entries = [
            {"what": str(index), "study": "codec", "cell": "source=a", **reach} for index, reach in enumerate(reaches)
        ]
        (tmp_path / "claims.yaml").write_text(yaml.safe_dump({"reaches": entries, "claims": []}))
        write_reaches(tmp_path / "claims.yaml", tmp_path, tmp_path / "reaches.csv", lambda study: fresh)
        return read_reaches(tmp_path / "reaches.csv").to_dict("records")

    return judge


def test_a_number_and_its_ends_are_judged(judged):
    rows = judged(
        {"measure": "ratio", "scope": "x", "condition": {"at_most": 0.4}},
        {"measure": "ratio", "scope": "x", "condition": {"at_most": 0.35}},
        {"measure": "ratio", "scope": "y", "condition": {"at_least": 0.6}},
        {"measure": "memory", "scope": "x", "condition": {"at_most": 64}, "published": "elsewhere 80"},
        {"measure": "memory", "scope": "x"},
    )
    assert [row["verdict"] for row in rows] == ["met", "met on the whole", "missed", "missed", ""]
    assert [row["reach"] for row in rows] == ["<= 0.4", "<= 0.35", ">= 0.6", "<= 64", ""]
    assert rows[0]["found"] == pytest.approx(0.3)
    assert (rows[0]["lowest"], rows[0]["highest"], rows[0]["n"]) == (0.2, 0.4, 2)
    assert (rows[3]["unit"], rows[3]["published"]) == ("MiB", "elsewhere 80")


def test_the_ends_are_those_of_the_seeds_where_there_are_several(judged):
    (row,) = judged({"measure": "ratio", "scope": "seeded", "condition": {"at_most": 0.6}})
    assert (row["found"], row["lowest"], row["highest"], row["n"]) == (0.5, 0.2, 0.8, 3)
    assert row["verdict"] == "met on the whole"


def test_what_was_not_measured_says_so_and_old_numbers_are_stale(judged):
    (row,) = judged({"measure": "ratio", "scope": "z", "condition": {"at_most": 1}})
    assert row["verdict"] == "not tested"
    assert row["reason"] == "codec has no ratio of z in the cell source=a"
    assert math.isnan(row["found"])
    (row,) = judged({"measure": "ratio", "scope": "x", "condition": {"at_most": 1}}, fresh=False)
    assert row["verdict"] == "stale"


def test_a_malformed_reach_is_named(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"reaches": [{"what": "x", "study": "s", "cell": "c", "measure": "m", "most": 1}]}))
    with pytest.raises(ConfigError, match=r"reaches: most"):
        load_reaches(path)
    path.write_text(yaml.safe_dump({"claims": []}))
    assert load_reaches(path) == []


def test_the_strokes_of_the_speed_figure_are_the_goals_as_stated():
    drawn = runpy.run_path(str(ROOT / "paper_figures" / "patch_codec_speed.py"))["REACHES"]
    stated = {
        ((reach.measure.removesuffix("_over_equal"), reach.scope), reach.condition.at_least)
        for reach in load_reaches(ROOT / "configs" / "claims.yaml")
        if reach.study == "patch_codec" and reach.measure.endswith("_over_equal") and reach.condition
    }
    assert set(drawn.items()) == stated
