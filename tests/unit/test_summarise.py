"""From hand-written run tables to summaries: each reduction, each interval, and the same bytes every time."""

import pytest

from thinwire_lab.analysis.intervals import t_interval
from thinwire_lab.analysis.summarise import RunFiles, read_summary, summarise
from thinwire_lab.tables import RUN_COLUMNS, Metric, write_rows

METRICS = {
    "loss": Metric("loss", "nats", "lower"),
    "seconds": Metric("seconds", "s", "lower", clock=True),
}
TABLES = {f"{prefix}{name}.csv" for prefix in ("", "clock_") for name in ("seeds", "totals", "curves")} | {"traces.csv"}


def measure(name="m", metric="loss", **options):
    return {"name": name, "metric": metric, "scope": "all", "reduce": "mean", **options}


def run(folder, cell, seed, metrics, clock=()):
    place = folder / f"{cell},seed={seed}"
    for name, rows in (("metrics", metrics), ("clock", clock)):
        write_rows(place / f"{name}.csv", RUN_COLUMNS, rows)
    return RunFiles(cell, seed, place / "metrics.csv", place / "clock.csv", place / "run.json")


def losses(values, scope="all", first=0):
    return [(step, scope, "loss", float(value)) for step, value in enumerate(values, first)]


def summary(tmp_path, measures, runs, name="seeds"):
    summarise({"name": "study", "measures": measures}, runs, tmp_path / "out", METRICS)
    return read_summary(tmp_path / "out" / f"{name}.csv")


@pytest.mark.parametrize(
    ("reduction", "options", "value"),
    [
        ("mean", {}, 3.75),
        ("mean", {"from_step": 2}, 5.5),
        ("last", {}, 8.0),
        ("first", {}, 1.0),
        ("first", {"from_step": 1}, 3.0),
        ("sum", {}, 15.0),
        ("min", {}, 1.0),
        ("max", {}, 8.0),
        ("median", {}, 3.0),
        ("gain", {"window": 1}, 7.0),
        ("gain", {"window": 2}, 3.5),
        # ten steps at either end of four steps would overlap
        ("gain", {"window": 10}, 3.5),
    ],
)
def test_reductions(tmp_path, reduction, options, value):
    # rows arrive in any order and are reduced in the order of their steps
    runs = [run(tmp_path, "a=1", 0, losses([1, 3, 3, 8])[::-1])]
    seeds = summary(tmp_path, [measure(reduce=reduction, **options)], runs)
    assert list(seeds["value"]) == [value]
    assert list(seeds.columns) == ["study", "cell", "seed", "measure", "scope", "unit", "value"]
    assert (seeds["study"][0], seeds["cell"][0], seeds["unit"][0]) == ("study", "a=1", "nats")


def test_totals_hold_the_t_interval_over_seeds(tmp_path):
    values = {0: 0.1, 1: 0.7, 2: 0.4}
    runs = [run(tmp_path, "a=1", seed, losses([value])) for seed, value in values.items()]
    runs.append(run(tmp_path, "a=2", 0, losses([5.0])))
    totals = summary(tmp_path, [measure()], runs, "totals").set_index("cell")
    expected = t_interval(list(values.values()))
    several, single = totals.loc["a=1"], totals.loc["a=2"]
    assert (several["n"], several["mean"], several["sd"]) == (3, expected.mean, expected.sd)
    assert (several["lower"], several["upper"], several["level"]) == (expected.lower, expected.upper, 0.95)
    assert (single["n"], single["mean"]) == (1, 5.0)
    assert single[["sd", "lower", "upper"]].isna().all()
    assert ",5.0,,,,0.95\n" in (tmp_path / "out" / "totals.csv").read_text()


def test_curves_hold_every_metric_scope_and_step(tmp_path):
    runs = [
        run(tmp_path, "a=1", seed, losses([seed, 2.0]) + losses([9.0], scope="mlp"), [(1, "all", "seconds", 0.5)])
        for seed in (0, 1)
    ]
    curves = summary(tmp_path, [measure()], runs, "curves")
    assert [tuple(row) for row in curves[["step", "scope", "metric", "n", "mean"]].itertuples(index=False)] == [
        (0, "all", "loss", 2, 0.5),
        (1, "all", "loss", 2, 2.0),
        (0, "mlp", "loss", 2, 9.0),
    ]
    expected = t_interval([0.0, 1.0])
    assert (curves["lower"][0], curves["upper"][0]) == (expected.lower, expected.upper)
    clock = read_summary(tmp_path / "out" / "clock_curves.csv")
    assert list(clock["metric"]) == ["seconds"]


def test_what_a_clock_touched_stays_in_tables_of_its_own(tmp_path):
    plain = run(tmp_path, "arm=plain", 0, losses([1.0]), [(0, "all", "seconds", 3.0)])
    # an asynchronous run keeps everything in its clock table
    free = run(tmp_path, "arm=free", 0, [], losses([2.0]))
    measures = [measure("loss"), measure("time", "seconds")]
    seeds = summary(tmp_path, measures, [plain, free])
    clock = read_summary(tmp_path / "out" / "clock_seeds.csv")
    assert list(zip(seeds["cell"], seeds["measure"], strict=True)) == [("arm=plain", "loss")]
    assert list(zip(clock["cell"], clock["measure"], strict=True)) == [("arm=free", "loss"), ("arm=plain", "time")]


def test_star_keeps_every_scope_and_a_named_scope_only_itself(tmp_path):
    runs = [run(tmp_path, "a=1", 0, losses([1.0]) + losses([2.0], scope="mlp"))]
    seeds = summary(tmp_path, [measure("every", scope="*"), measure("one", scope="mlp")], runs)
    assert list(zip(seeds["measure"], seeds["scope"], seeds["value"], strict=True)) == [
        ("every", "all", 1.0),
        ("every", "mlp", 2.0),
        ("one", "mlp", 2.0),
    ]


def test_what_a_run_did_not_record_lowers_n(tmp_path):
    runs = [run(tmp_path, "a=1", 0, losses([1.0])), run(tmp_path, "a=1", 1, losses([2.0], scope="mlp"))]
    totals = summary(tmp_path, [measure(), measure("late", from_step=5)], runs, "totals")
    assert list(zip(totals["measure"], totals["n"], strict=True)) == [("m", 1)]


def test_a_trace_differs_when_a_single_step_differs_in_its_last_bit(tmp_path):
    values = [0.1, 0.2, 0.3]
    nudged = [0.1, 0.2, 0.30000000000000004]
    runs = [
        run(tmp_path, "arm=a", 0, losses(values)),
        run(tmp_path, "arm=b", 0, losses(values)),
        run(tmp_path, "arm=c", 0, losses(nudged)),
        run(tmp_path, "arm=d", 0, losses(values, first=1)),
    ]
    traces = summary(tmp_path, [measure()], runs, "traces").set_index("cell")["trace"]
    assert traces["arm=a"] == traces["arm=b"]
    assert len({traces["arm=a"], traces["arm=c"], traces["arm=d"]}) == 3


def test_the_same_runs_in_any_order_give_the_same_bytes(tmp_path):
    runs = [
        run(
            tmp_path,
            cell,
            seed,
            losses([0.1 * seed, 1 / 3]) + losses([1e-9], scope="mlp"),
            [(0, "all", "seconds", 2.0)],
        )
        for cell in ("lr=3e-06", "lr=1e-06")
        for seed in (10, 2)
    ]
    study = {"name": "study", "measures": [measure(scope="*"), measure("time", "seconds")]}
    summarise(study, runs, tmp_path / "one", METRICS)
    summarise(study, runs[::-1], tmp_path / "two", METRICS)
    assert {path.name for path in (tmp_path / "one").iterdir()} == TABLES
    for name in TABLES:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    seeds = read_summary(tmp_path / "one" / "seeds.csv")
    assert list(seeds["seed"][:2]) == [2, 10]


def test_empty_tables_keep_their_columns(tmp_path):
    seeds = summary(tmp_path, [measure()], [run(tmp_path, "a=1", 0, [])], "clock_totals")
    assert len(seeds) == 0
    assert "lower" in seeds.columns


@pytest.mark.parametrize(
    ("measures", "rows", "said"),
    [
        ([measure(metric="speed")], losses([1.0]), "names the metric 'speed', undeclared"),
        ([measure(reduce="mode")], losses([1.0]), "must be one of mean, last"),
        ([measure(), measure()], losses([1.0]), "two measures are named 'm'"),
        ([measure()], [(0, "all", "speed", 1.0)], "'speed', which is not declared"),
        ([measure()], losses([1.0]) + losses([2.0]), "two values at one step"),
    ],
)
def test_bad_studies_and_tables_are_refused(tmp_path, measures, rows, said):
    with pytest.raises(ValueError, match=said):
        summary(tmp_path, measures, [run(tmp_path, "a=1", 0, rows)])
    assert not (tmp_path / "out" / "seeds.csv").exists()


def test_a_table_with_other_columns_and_doubled_runs_are_refused(tmp_path):
    files = run(tmp_path, "a=1", 0, losses([1.0]))
    with pytest.raises(ValueError, match="share a cell and a seed"):
        summary(tmp_path, [measure()], [files, files])
    files.metrics.write_text("step,metric,value\n0,loss,1.0\n")
    with pytest.raises(ValueError, match="first line must be step,scope,metric,value"):
        summary(tmp_path, [measure()], [files])
