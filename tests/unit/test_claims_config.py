"""The claims, the studies and the metrics hold together: every cell, measure and metric that a claim names exists."""

import string
from functools import cache
from pathlib import Path

import pytest

from thinwire_lab.analysis.claims import load_answers, load_claims
from thinwire_lab.analysis.rules import AllEqual, Both, Never, NotEstablished, NotTested, Ratio, Threshold
from thinwire_lab.config import load_config, load_study
from thinwire_lab.plan import plan_study
from thinwire_lab.tables import METRICS

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"
CLAIMS = load_claims(CONFIGS / "claims.yaml")
STUDIES = load_config(CONFIGS / "config.yaml").studies
STUDY = {name: load_study(name, CONFIGS) for name in STUDIES}
SCALES = ("smoke", "laptop", "paper")

# scales that plan no cell for a claim; configs/claims.yaml says why
UNDECIDED = {("P-rounds-quality", "paper"), ("P-rounds-vs-diloco", "smoke"), ("P-rounds-vs-ddp", "smoke")}

RULES = {
    "P-sparsity-step": ">= 0.989",
    "P-sparsity-k": ">= 0.98",
    "P-gradients-dense": ">= 0.95",
    "P-mechanism": "0.85 to 1.15",
    "P-lossless": "all equal",
    "P-payload": ">= 100",
    "P-identical-training": "all equal",
    "P-slow-link": ">= 50",
    "P-utilisation": ">= 50",
    "P-learning": "all equal and > 0",
    "P-rounds-vs-diloco": ">= 17",
    "P-rounds-vs-ddp": ">= 100",
    "P-rounds-quality": "<= 0.01",
    "L-throughput": "> 1",
    "L-attribution": "<= 1.02",
    "L-memory": "> 1.5",
    "L-quality": "> 0",
    "L-noninferiority": "bound > log 1.01",
    "L-tinystories": "> 0.025",
}


@cache
def planned(study, scale):
    return plan_study(study, scale, CONFIGS)


def test_every_published_claim_stands_in_order_with_its_rule():
    assert [(claim.id, claim.rule.text) for claim in CLAIMS] == list(RULES.items())


def parts_of(rule):
    return rule.parts if isinstance(rule, Both) else [rule]


def roles_of(rule):
    roles = set()
    for part in parts_of(rule):
        if isinstance(part, AllEqual):
            roles |= {"left", "right"}
        elif isinstance(part, Ratio | NotEstablished):
            roles |= {"numerator", "denominator"}
        elif not isinstance(part, NotTested):
            roles |= {"cell"}
    return roles


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_that_decides_is_planned(claim, scale):
    assert claim.study in STUDIES
    if isinstance(claim.rule, NotTested):
        assert claim.cells == {}
        return
    if (claim.id, scale) in UNDECIDED:
        assert scale not in claim.cells
        return
    known = {row.cell for row in planned(claim.study, scale)}
    cells = claim.cells[scale]
    assert set(cells) == roles_of(claim.rule)
    for named in cells.values():
        assert set(named) <= known


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_every_measure_and_metric_exists(claim):
    measures = {measure.name: measure for measure in STUDY[claim.study].measures}
    for part in parts_of(claim.rule):
        if isinstance(part, AllEqual):
            assert {named.partition("@")[0] for named in part.metrics} <= set(METRICS)
        elif isinstance(part, Threshold) and part.over == "steps":
            assert part.measure in METRICS
        elif not isinstance(part, NotTested):
            names = [part.measure, getattr(part, "denominator_measure", "")]
            names += [part.checked] if isinstance(part, Never) else []
            for name in filter(None, names):
                assert measures[name].scope in ("*", part.scope)


def test_the_deciding_cells_at_laptop_scale_have_the_seeds_that_an_interval_needs():
    for claim in CLAIMS:
        for part in parts_of(claim.rule):
            over_seeds = isinstance(part, Ratio | NotEstablished) or (
                isinstance(part, Threshold) and part.over == "seeds"
            )
            if over_seeds:
                rows = planned(claim.study, "laptop")
                for cell in {cell for named in claim.cells["laptop"].values() for cell in named}:
                    assert len([row for row in rows if row.cell == cell]) >= 2, (claim.id, cell)


def test_every_study_has_an_answer_made_of_its_own_claims_or_means():
    answers = load_answers(CONFIGS / "claims.yaml")
    assert set(answers) == set(STUDIES)
    owner = {claim.id: claim.study for claim in CLAIMS}
    for study, template in answers.items():
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field]
        assert fields
        for field in (field for field in fields if field.startswith("totals[")):
            cell, _, measure = field.removeprefix("totals[").removesuffix("]").split("|")
            assert measure in {known.name for known in STUDY[study].measures}
            for scale in SCALES:
                assert cell in {row.cell for row in planned(study, scale)}
        named = [field.partition(".") for field in fields if not field.startswith("totals[")]
        for claim, _, field in named:
            assert owner[claim] == study
            assert field in ("estimate", "lower", "upper", "n", "verdict", "found")
