"""Study files become rows, and wrong files are refused in one sentence."""

import pytest
import yaml

from thinwire_lab.config import ConfigError, load_config, load_study
from thinwire_lab.plan import name_of, plan_all, plan_study

STUDY = {
    "question": "Does it?",
    "experiment": "sample",
    "base": {"steps": 4},
    "grid": [{"axes": {"seed": [0, 1], "lr": [3e-06, 1e-05], "precision": ["bf16"]}, "seconds": 2}],
    "measures": [{"name": "loss", "metric": "loss", "reduce": "last"}],
    "scales": {"smoke": {"base": {"steps": 1}, "grid": [{"axes": {"lr": [1e-05], "seed": [0]}, "seconds": 1}]}},
}


@pytest.fixture
def configs(tmp_path):
    def write(name="sample", **changes):
        (tmp_path / "studies").mkdir(exist_ok=True)
        (tmp_path / "studies" / f"{name}.yaml").write_text(yaml.safe_dump({**STUDY, "experiment": name, **changes}))
        return tmp_path

    return write


def test_rows_are_the_product_of_the_axes_with_the_seed_last(configs):
    rows = plan_study("sample", "laptop", configs())
    assert [row.run for row in rows] == [
        "lr=3e-06,precision=bf16,seed=0",
        "lr=3e-06,precision=bf16,seed=1",
        "lr=1e-05,precision=bf16,seed=0",
        "lr=1e-05,precision=bf16,seed=1",
    ]
    assert rows[0].cell == "lr=3e-06,precision=bf16"
    assert rows[0].config == {"steps": 4, "lr": 3e-06, "precision": "bf16"}
    assert [row.seed for row in rows] == [0, 1, 0, 1]


def test_a_scale_merges_its_base_and_replaces_the_grid(configs):
    (row,) = plan_study("sample", "smoke", configs())
    assert row.run == "lr=1e-05,seed=0"
    assert row.config == {"steps": 1, "lr": 1e-05}


def test_a_need_must_be_kept_by_a_planned_row(configs):
    needing = {
        "axes": {"seed": [0]},
        "seconds": 1,
        "needs": {"versions": {"study": "kept", "run": {"lr": 1e-05, "seed": 0}}},
    }
    folder = configs("needing", grid=[needing])
    configs("kept", grid=[{"axes": {"lr": [1e-05], "seed": [0]}, "seconds": 1}])
    with pytest.raises(
        ConfigError, match="needing seed=0 needs the versions of kept lr=1e-05,seed=0, which no row keeps"
    ):
        plan_all(["needing", "kept"], "laptop", folder)
    configs("kept", grid=[{"axes": {"lr": [1e-05], "seed": [0]}, "seconds": 1, "keeps_versions": True}])
    (row,) = plan_all(["needing", "kept"], "laptop", folder)["needing"]
    assert row.needs == {"versions": ("kept", "lr=1e-05,seed=0")}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": [{"axes": {"lr": [1.0]}, "seconds": 1}]}, "a block has no axis `seed`"),
        ({"grid": [{"axes": {"seed": [0.5]}, "seconds": 1}]}, "seed 0.5 is not a whole number"),
        ({"grid": [{"axes": {"seed": [0, 0]}, "seconds": 1}]}, "two rows are named seed=0"),
        ({"grid": [{"axes": {"arm": ["a/b"], "seed": [0]}, "seconds": 1}]}, "only letters, digits"),
        ({"gird": []}, "gird: Extra inputs are not permitted"),
        ({"measures": [{"name": "x", "metric": "y", "reduce": "average"}]}, "measures.0.reduce"),
    ],
)
def test_a_wrong_study_is_refused_with_its_place(configs, changes, message):
    with pytest.raises(ConfigError, match=message):
        plan_study("sample", "laptop", configs(**changes))


def test_a_missing_study_is_named(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_study("absent", tmp_path)


def test_a_study_file_names_its_own_experiment(configs):
    with pytest.raises(ConfigError, match="must be the file's own name 'sample'"):
        load_study("sample", configs(experiment="other"))


def test_names_are_readable_and_floats_exact():
    assert name_of({"lr": 3e-06, "margin": 0.1, "compile": True, "n": 4}) == "lr=3e-06,margin=0.1,compile=true,n=4"


def test_the_projects_own_studies_plan_at_every_scale():
    config = load_config()
    for scale in ("smoke", "laptop", "paper"):
        plan = plan_all(config.studies, scale)
        assert set(plan) == set(config.studies)
        assert all(plan.values())
