"""A protocol is written once, before the first run, and a later change takes the verdict away."""

import json
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from thinwire_lab import cli, running
from thinwire_lab.analysis.claims import judge, load_claims, read_claims
from thinwire_lab.analysis.summarise import RunFiles, summarise
from thinwire_lab.config import Protocol, load_config, load_study
from thinwire_lab.plan import plan_study
from thinwire_lab.preregistration import objection, protocol_hash, register
from thinwire_lab.statistics.limits import METHODS
from thinwire_lab.tables import RUN_COLUMNS, write_rows

CONFIGS = Path(__file__).parents[2] / "configs"
NAME = "local_learning"
STUDY = load_study(NAME, CONFIGS)
ROWS = plan_study(NAME, "laptop", CONFIGS)
CLAIMS = {claim.id: claim for claim in load_claims(CONFIGS / "claims.yaml")}
SEEDS = tuple(STUDY.protocol.seeds["laptop"])
CELLS = [cell for named in CLAIMS["L-noninferiority"].cells["laptop"].values() for cell in named]


def changed(**terms):
    return STUDY.model_copy(update={"protocol": STUDY.protocol.model_copy(update=terms)})


def written(results):
    return json.loads((results / "protocols" / f"{NAME}.json").read_text())


def test_the_hash_is_of_terms_and_not_of_layout():
    plain = protocol_hash(NAME, STUDY.protocol, "laptop")
    again = Protocol.model_validate(dict(reversed(list(STUDY.protocol.model_dump().items()))))
    assert protocol_hash(NAME, again, "laptop") == plain
    assert len(plain) == 64
    assert protocol_hash(NAME, STUDY.protocol, "paper") != plain
    assert protocol_hash("other", STUDY.protocol, "laptop") != plain


@pytest.mark.parametrize(
    "terms",
    [
        {"margin": 0.02},
        {"alpha": 0.025},
        {"method": "bca"},
        {"family": "holm"},
        {"measure": "train_loss"},
        {"stop": "when it passes"},
        {"data": {"laptop": ["stories", "enwiki"]}},
        {"seeds": {"laptop": [0, 1, 2, 3]}},
    ],
)
def test_every_term_binds(terms, tmp_path):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    assert objection(NAME, STUDY, "laptop", tmp_path, CELLS) == ""
    said = objection(NAME, changed(**terms), "laptop", tmp_path, CELLS)
    assert said == f"protocol changed: {next(iter(terms))}"


def test_seeds_of_another_scale_change_nothing_here(tmp_path):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    seeds = {**STUDY.protocol.seeds, "paper": [7]}
    assert objection(NAME, changed(seeds=seeds), "laptop", tmp_path, CELLS) == ""


def test_what_is_written_first_stays(tmp_path):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    first = written(tmp_path)
    register(NAME, changed(margin=0.05), "laptop", ROWS, tmp_path)
    assert written(tmp_path) == first
    assert first["hash"] == protocol_hash(NAME, STUDY.protocol, "laptop")
    assert first["protocol"]["margin"] == 0.01
    assert [path.name for path in (tmp_path / "protocols").iterdir()] == [f"{NAME}.json"]


def test_a_study_without_a_protocol_writes_none(tmp_path):
    register("patch_codec", load_study("patch_codec", CONFIGS), "laptop", [], tmp_path)
    assert not (tmp_path / "protocols").exists()


def test_runs_that_were_there_before_are_not_covered(tmp_path):
    assert objection(NAME, STUDY, "laptop", tmp_path, CELLS) == "no protocol was written before the first run"
    early = next(row for row in ROWS if row.cell == CELLS[0])
    record = tmp_path / "runs" / NAME / early.run / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    assert written(tmp_path)["finished_before"] == {early.run: early.cell}
    said = objection(NAME, STUDY, "laptop", tmp_path, CELLS)
    assert said.startswith("1 of the deciding runs were made before the protocol was written")
    assert objection(NAME, STUDY, "laptop", tmp_path, ["part=memory"]) == ""


def test_the_first_run_writes_it_before_it_runs(tmp_path, monkeypatch):
    seen = []

    def stopped(row, results, **_):
        seen.append(written(results)["hash"])
        raise RuntimeError("stopped here")

    monkeypatch.setattr(running, "run_row", stopped)
    monkeypatch.chdir(CONFIGS.parent)
    done = CliRunner().invoke(cli.app, ["run", NAME, ROWS[0].run, "--results", str(tmp_path)])
    assert done.exit_code == 1
    assert seen == [protocol_hash(NAME, STUDY.protocol, "laptop")]


@pytest.fixture
def judged(tmp_path):
    """Judge the real claims of the study on made-up runs of the given seeds."""

    def make(seeds=SEEDS, study=STUDY, rule=None):
        runs = []
        for place, cell in enumerate(dict.fromkeys(row.cell for row in ROWS)):
            for seed in seeds:
                folder = tmp_path / "runs" / str(place) / str(seed)
                rows = [(1, "all", "bits_per_byte", 2.0 + 0.001 * place + 0.01 * seed + 0.0001 * place * seed)]
                write_rows(folder / "metrics.csv", RUN_COLUMNS, rows)
                write_rows(folder / "clock.csv", RUN_COLUMNS, [])
                files = (folder / "metrics.csv", folder / "clock.csv", folder / "run.json")
                runs.append(RunFiles(cell, seed, *files))
        measures = [{"name": "bits_per_byte", "metric": "bits_per_byte", "reduce": "last"}]
        summarise({"name": NAME, "measures": measures}, runs, tmp_path / "summaries" / NAME)

        def protocols(name, cells):
            return (study.protocol, objection(name, study, "laptop", tmp_path, cells)) if name == NAME else (None, "")

        out = tmp_path / "claims.csv"
        judge(CONFIGS / "claims.yaml", tmp_path / "summaries", "laptop", out, lambda study: True, protocols)
        return read_claims(out).set_index("id").loc[STUDY.protocol.claims]

    return make


def test_claims_are_judged_under_the_protocol_that_was_written(judged, tmp_path):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    found = judged()
    assert set(found["verdict"]) <= {"holds", "fails", "undecided"}


def test_a_changed_protocol_takes_the_verdict_away(judged, tmp_path):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    found = judged(study=changed(margin=0.05))
    assert set(found["verdict"]) == {"not tested"}
    assert set(found["reason"]) == {"protocol changed: margin"}


def test_without_a_written_protocol_nothing_is_tested(judged):
    found = judged()
    assert set(found["verdict"]) == {"not tested"}
    assert set(found["reason"]) == {"no protocol was written before the first run"}


@pytest.mark.parametrize("seeds", [SEEDS[:-1], (*SEEDS, 99)])
def test_the_listed_seeds_are_judged_and_no_others(judged, tmp_path, seeds):
    register(NAME, STUDY, "laptop", ROWS, tmp_path)
    found = judged(seeds=seeds)
    assert set(found["verdict"]) == {"not tested"}
    assert all(f"the protocol {list(SEEDS)}" in reason for reason in found["reason"])


def test_a_rule_that_judges_otherwise_than_the_protocol_is_no_test(judged, tmp_path):
    other = changed(alpha=0.025)
    register(NAME, other, "laptop", ROWS, tmp_path)
    found = judged(study=other)
    assert found.loc["L-noninferiority", "verdict"] == "not tested"
    assert "the rule judges" in found.loc["L-noninferiority", "reason"]
    assert found.loc["L-quality", "verdict"] != "not tested"


@pytest.mark.parametrize("study", load_config(CONFIGS / "config.yaml").studies)
def test_a_protocol_lists_the_planned_seeds_of_the_claims_that_it_binds(study):
    protocol = load_study(study, CONFIGS).protocol
    if protocol is None:
        return
    for scale in ("smoke", "laptop", "paper"):
        rows = plan_study(study, scale, CONFIGS)
        for name in protocol.claims:
            assert CLAIMS[name].study == study
            for cell in {cell for named in CLAIMS[name].cells[scale].values() for cell in named}:
                assert sorted(row.seed for row in rows if row.cell == cell) == sorted(protocol.seeds[scale]), cell
                assert any(f"text={text}" in cell for text in protocol.data[scale]), cell


def test_a_protocol_may_name_every_method_there_is():
    assert get_args(Protocol.model_fields["method"].annotation) == METHODS
