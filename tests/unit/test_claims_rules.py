"""The three-valued rules, each on summaries made from small run tables."""

import math

import pytest

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.intervals import t_interval
from thinwire_lab.analysis.rules import AllEqual, Both, Condition, Never, NotEstablished, Ratio, Threshold
from thinwire_lab.analysis.summarise import RunFiles, summarise
from thinwire_lab.tables import RUN_COLUMNS, Metric, write_rows

METRICS = {name: Metric(name, "", clock=name == "speed") for name in ("share", "bits", "speed", "bad", "all")}
MEASURES = [{"name": name, "metric": name, "scope": "all", "reduce": "mean"} for name in METRICS]


@pytest.fixture
def made(tmp_path):
    """Summaries of a study from ``cell -> metric -> seed -> values by step``."""

    def make(cells):
        runs = []
        for cell, metrics in cells.items():
            for seed in sorted({seed for by_seed in metrics.values() for seed in by_seed}):
                rows = [
                    (step, scope, metric, float(value))
                    for name, by_seed in metrics.items()
                    for metric, _, scope in [name.partition("@")]
                    for step, value in enumerate(by_seed.get(seed, []))
                ]
                rows = [(step, scope or "all", metric, value) for step, scope, metric, value in rows]
                place = tmp_path / cell / str(seed)
                for table, clock in (("metrics", False), ("clock", True)):
                    mine = [row for row in rows if METRICS[row[2]].clock is clock]
                    write_rows(place / f"{table}.csv", RUN_COLUMNS, mine)
                runs.append(RunFiles(cell, seed, place / "metrics.csv", place / "clock.csv", place / "run.json"))
        summarise({"name": "study", "measures": MEASURES}, runs, tmp_path / "summaries" / "study", METRICS)
        return Summaries(tmp_path / "summaries", "study")

    return make


def seeds(*values):
    return {seed: [value] for seed, value in enumerate(values)}


@pytest.mark.parametrize(
    ("condition", "values", "verdict"),
    [
        ({"at_least": 0.989}, (0.991, 0.9911, 0.9909), "holds"),
        ({"at_least": 0.989}, (0.98, 0.9801, 0.9799), "fails"),
        ({"at_least": 0.989}, (0.985, 0.991, 0.993), "undecided"),
        ({"at_least": 0.989}, (0.999,), "undecided"),
        ({"at_least": 0.5}, (0.5, 0.5), "holds"),
        ({"above": 0.5}, (0.5, 0.5), "fails"),
        ({"at_most": 0.5}, (0.5, 0.5), "holds"),
        ({"below": 0.5}, (0.5, 0.5), "fails"),
        ({"between": (0.85, 1.15)}, (0.99, 1.0, 1.01), "holds"),
        ({"between": (0.85, 1.15)}, (1.5, 1.51, 1.49), "fails"),
        ({"between": (0.85, 1.15)}, (0.9, 1.4, 1.0), "undecided"),
        # an interval around the whole range neither lies in it nor outside
        ({"between": (0.99, 1.01)}, (0.5, 1.5), "undecided"),
    ],
)
def test_threshold(made, condition, values, verdict):
    rule = Threshold(kind="threshold", measure="share", condition=condition)
    found = rule.decide(made({"lr=1": {"share": seeds(*values)}}), {"cell": ["lr=1"]})
    interval = t_interval(values)
    assert (found.verdict, found.n, found.cell) == (verdict, len(values), "lr=1")
    assert (found.estimate, found.lower, found.upper) == (interval.mean, interval.lower, interval.upper)
    assert found.level == (0.95 if len(values) > 1 else None)


def test_threshold_over_the_steps_of_a_run_says_so(made):
    summaries = made({"lr=1": {"bits": {0: [900, 101, 102, 103]}}})
    rule = Threshold(kind="threshold", measure="bits", over="steps", from_step=1, condition={"at_least": 90})
    found = rule.decide(summaries, {"cell": ["lr=1"]})
    assert (found.verdict, found.n, found.estimate) == ("holds", 3, 102.0)
    assert "correlated" in found.reason


def test_a_condition_has_exactly_one_bound():
    assert Condition(at_least=0.989).text == ">= 0.989"
    assert Condition(between=(0.85, 1.15)).text == "0.85 to 1.15"
    for wrong in ({}, {"above": 1, "below": 2}):
        with pytest.raises(ValueError, match="exactly one"):
            Condition(**wrong)


def test_ratio_pairs_seeds_on_the_log_scale(made):
    summaries = made({"arm=a": {"share": seeds(2.0, 4.4, 7.0)}, "arm=b": {"share": seeds(1.0, 2.0, 3.5, 9.0)}})
    cells = {"numerator": ["arm=a"], "denominator": ["arm=b"]}
    logs = t_interval([math.log(2.0), math.log(2.2), math.log(2.0)])
    for shown, change in (("ratio", math.exp), ("relative", math.expm1), ("log", float)):
        rule = Ratio(kind="ratio", measure="share", shown_as=shown, condition={"above": change(0.5)})
        found = rule.decide(summaries, cells)
        assert (found.verdict, found.n, found.cell) == ("holds", 3, "arm=a against arm=b")
        expected = (change(logs.mean), change(logs.lower), change(logs.upper))
        assert (found.estimate, found.lower, found.upper) == pytest.approx(expected)


def test_ratio_takes_the_strongest_rival(made):
    summaries = made(
        {
            "arm=a": {"speed": seeds(9.0, 11.0)},
            "threads=1": {"speed": seeds(3.0, 3.0)},
            "threads=2": {"speed": seeds(4.5, 5.5)},
        }
    )
    cells = {"numerator": ["arm=a"], "denominator": ["threads=1", "threads=2"]}
    found = Ratio(kind="ratio", measure="speed", condition={"above": 1.0}).decide(summaries, cells)
    assert found.cell == "arm=a against threads=2"
    assert (found.estimate, found.lower, found.upper) == pytest.approx((2.0, 2.0, 2.0))


def test_ratio_of_two_measures_in_one_cell(made):
    summaries = made({"lr=1": {"bits": seeds(200.0, 300.0), "share": seeds(2.0, 3.0)}})
    rule = Ratio(kind="ratio", measure="bits", denominator_measure="share", condition={"at_least": 100})
    found = rule.decide(summaries, {"numerator": ["lr=1"], "denominator": ["lr=1"]})
    assert (found.verdict, found.cell) == ("holds", "lr=1")


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({0: [1.0]}, {1: [1.0]}, "no seed in common"),
        ({0: [1.0]}, {0: [0.0]}, "no ratio can be formed"),
        ({0: []}, {0: [1.0]}, "no share in the cell arm=a"),
    ],
)
def test_a_ratio_that_can_not_be_formed_is_not_tested(made, first, second, said):
    summaries = made({"arm=a": {"share": first}, "arm=b": {"share": second}})
    rule = Ratio(kind="ratio", measure="share", condition={"above": 1.0})
    with pytest.raises(EvidenceError, match=said):
        rule.decide(summaries, {"numerator": ["arm=a"], "denominator": ["arm=b"]})


def test_all_equal_compares_every_step_of_every_seed(made):
    same = {"share": {0: [0.1, 0.2], 1: [0.3, 0.4]}, "bits": {0: [1, 2, 3], 1: [4, 5, 6]}}
    nudged = {"share": {0: [0.1, 0.2], 1: [0.3, 0.4]}, "bits": {0: [1, 2, 3], 1: [4, 5, math.nextafter(6, 7)]}}
    summaries = made({"arm=a": same, "arm=b": same, "arm=c": nudged})
    rule = AllEqual(kind="all_equal", metrics=["share", "bits"])
    found = rule.decide(summaries, {"left": ["arm=a"], "right": ["arm=b"]})
    assert (found.verdict, found.n, found.estimate, found.lower) == ("holds", 10, None, None)
    found = rule.decide(summaries, {"left": ["arm=a"], "right": ["arm=c"]})
    assert (found.verdict, found.reason) == ("fails", "differs: bits of seed 1")


def test_all_equal_compares_the_named_scope(made):
    first = {"bits@trainer": {0: [1, 2]}, "bits@worker": {0: [1, 2]}}
    second = {"bits@trainer": {0: [1, 2]}, "bits@worker": {0: [1]}}
    summaries = made({"arm=a": first, "arm=b": second})
    for scope, verdict in (("trainer", "holds"), ("worker", "fails")):
        rule = AllEqual(kind="all_equal", metrics=[f"bits@{scope}"])
        assert rule.decide(summaries, {"left": ["arm=a"], "right": ["arm=b"]}).verdict == verdict


def test_all_equal_needs_the_same_seeds(made):
    summaries = made({"arm=a": {"bits": {0: [1]}}, "arm=b": {"bits": {0: [1], 1: [1]}}})
    with pytest.raises(EvidenceError, match=r"seeds \[0\] and \[0, 1\]"):
        AllEqual(kind="all_equal", metrics=["bits"]).decide(summaries, {"left": ["arm=a"], "right": ["arm=b"]})


def test_never_counts_over_all_cells(made):
    summaries = made(
        {"lr=1": {"bad": seeds(0, 0), "all": seeds(8, 8)}, "lr=2": {"bad": seeds(0, 1), "all": seeds(8, 8)}}
    )
    rule = Never(kind="never", measure="bad", checked="all")
    assert (rule.decide(summaries, {"cell": ["lr=1"]}).verdict, rule.decide(summaries, {"cell": ["lr=1"]}).n) == (
        "holds",
        16,
    )
    found = rule.decide(summaries, {"cell": ["lr=1", "lr=2"]})
    assert (found.verdict, found.n, found.cell) == ("fails", 32, "2 cells")


@pytest.mark.parametrize(
    ("logs", "verdict", "said"),
    [
        ((0.0101, 0.0105, 0.0099, 0.0103), "holds", "not established"),
        ((0.001, 0.0012, 0.0008, 0.0011), "fails", "is established"),
        # wide enough that a study of this size would rarely establish it
        ((0.0, 0.05, -0.04), "undecided", "under the 0.8"),
        ((0.02,), "undecided", "one pair"),
    ],
)
def test_not_established_needs_a_study_that_could_have_established_it(made, logs, verdict, said):
    base = [1.5 + seed / 10 for seed in range(len(logs))]
    ours = [value * math.exp(log) for value, log in zip(base, logs, strict=True)]
    summaries = made({"arm=rgc": {"bits": seeds(*ours)}, "arm=global": {"bits": seeds(*base)}})
    rule = NotEstablished(kind="noninferiority", measure="bits")
    found = rule.decide(summaries, {"numerator": ["arm=rgc"], "denominator": ["arm=global"]})
    assert (found.verdict, found.n, found.lower) == (verdict, len(logs), None)
    assert said in found.reason
    assert found.estimate == pytest.approx(sum(logs) / len(logs))
    assert rule.text == "bound > log 1.01"


@pytest.mark.parametrize(
    ("gains", "other", "verdict"),
    [((0.3, 0.31, 0.29), 5.0, "holds"), ((0.3, -0.31, 0.29), 5.0, "undecided"), ((0.3, 0.31, 0.29), 6.0, "fails")],
)
def test_both_needs_every_part(made, gains, other, verdict):
    summaries = made({"arm=a": {"share": seeds(*gains), "bits": {0: [5.0]}}, "arm=b": {"bits": {0: [other]}}})
    rule = Both.model_validate(
        {
            "kind": "both",
            "parts": [
                {"kind": "all_equal", "metrics": ["bits"]},
                {"kind": "threshold", "measure": "share", "condition": {"above": 0.0}},
            ],
        }
    )
    found = rule.decide(summaries, {"cell": ["arm=a"], "left": ["arm=a"], "right": ["arm=b"]})
    assert (found.verdict, found.n, rule.text) == (verdict, 3, "all equal and > 0")
    assert found.estimate == pytest.approx(sum(gains) / 3)
