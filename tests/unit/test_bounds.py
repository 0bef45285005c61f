"""The table of bounds: every method on the same pairs, and words where a method has no answer."""

import math

import pytest
import yaml

from thinwire_lab.analysis.bounds import Comparison, read_bounds, write_bounds
from thinwire_lab.analysis.noninferiority import noninferiority
from thinwire_lab.analysis.summarise import SEEDS, read_summary
from thinwire_lab.config import Protocol
from thinwire_lab.statistics.limits import METHODS, TWO_FACTORS
from thinwire_lab.tables import write_rows

COMPARISON = {
    "study": "s",
    "measure": "loss",
    "margin": 0.01,
    "baseline": "arm=a",
    "candidates": ["arm=b", "arm=absent"],
}
BASE = (1.200, 1.215, 1.190, 1.205, 1.210)
FACTORS = (1.008, 1.010, 1.006, 1.012, 1.004)


@pytest.fixture
def table(tmp_path):
    def make(pairs, **options):
        rows = [("s", "arm=a", seed, "loss", "all", "bits", base) for seed, (base, _) in enumerate(pairs)]
        rows += [("s", "arm=b", seed, "loss", "all", "bits", mine) for seed, (_, mine) in enumerate(pairs)]
        for segment, (name, spread) in enumerate((("segment_0", 0.9), ("segment_1", 1.1), ("segment_2", 1.0))):
            rows += [
                ("s", cell, seed, "by_segment", name, "bits", value * spread * (1 + (segment + seed) % 3 / 9000))
                for cell, place in (("arm=a", 0), ("arm=b", 1))
                for seed, pair in enumerate(pairs)
                for value in [pair[place] * (1 + place * segment / 900)]
            ]
        write_rows(tmp_path / "s" / "seeds.csv", SEEDS, rows)
        write_rows(tmp_path / "s" / "clock_seeds.csv", SEEDS, [])
        (tmp_path / "claims.yaml").write_text(yaml.safe_dump({"bounds": [COMPARISON | options], "claims": []}))
        write_bounds(tmp_path / "claims.yaml", tmp_path, tmp_path / "bounds.csv")
        return read_bounds(tmp_path / "bounds.csv").set_index("method")

    return make


def test_every_method_judges_the_same_pairs(table):
    pairs = [(base, base * factor) for base, factor in zip(BASE, FACTORS, strict=True)]
    found = table(pairs)
    assert list(found.index) == [method for method in METHODS if method not in TWO_FACTORS]
    assert set(found["candidate"]) == {"arm=b"}
    assert set(found["n"]) == {5}
    expected = noninferiority([base for base, _ in pairs], [mine for _, mine in pairs])
    assert found.loc["paired-t", "upper_bound"] == expected.upper_bound
    assert found.loc["paired-t", "p_value"] == pytest.approx(0.114910, abs=5e-7)
    assert found["estimate"].nunique() == 1
    assert found.loc["percentile", "upper_bound"] < math.log(max(FACTORS))


def test_segments_bring_the_methods_with_two_factors(table):
    found = table([(base, base * factor) for base, factor in zip(BASE, FACTORS, strict=True)], segments="by_segment")
    assert list(found.index) == list(METHODS)
    assert set(found["n"]) == {5}
    for method in TWO_FACTORS:
        assert found.loc[method, "estimate"] == pytest.approx(found.loc["paired-t", "estimate"], abs=2e-3)
        assert math.isfinite(found.loc[method, "upper_bound"])
    assert Comparison.model_validate(COMPARISON | {"segments": "by_segment"}).methods == METHODS


def test_a_measure_that_was_not_kept_by_segment_leaves_the_other_methods(table):
    found = table([(1.0, 1.01), (1.0, 1.02), (1.0, 1.015)], segments="absent")
    assert not set(found.index) & set(TWO_FACTORS)


def test_segments_that_make_no_two_blocks_leave_the_other_methods(table):
    pairs = [(base, base * factor) for base, factor in zip(BASE, FACTORS, strict=True)]
    assert not set(table(pairs, segments="by_segment", block=2).index) & set(TWO_FACTORS)


def test_few_seeds_get_words_for_the_bootstrap_and_a_bound_for_t(table):
    found = table([(1.0, 1.01), (1.0, 1.02), (1.0, 1.015)])
    assert math.isfinite(found.loc["paired-t", "upper_bound"])
    for method in ("percentile", "basic", "bca", "bootstrap-t", "sign-flip"):
        assert found.loc[method, "verdict"] == "infeasible"
        assert found.loc[method, "reason"]


def test_the_table_is_the_same_bytes_each_time(table, tmp_path):
    pairs = [(base, base * factor) for base, factor in zip(BASE, FACTORS, strict=True)]
    table(pairs)
    first = (tmp_path / "bounds.csv").read_bytes()
    table(pairs)
    assert (tmp_path / "bounds.csv").read_bytes() == first
    assert len(read_summary(tmp_path / "s" / "seeds.csv")) == 40


@pytest.mark.parametrize(
    ("rule", "verdicts"),
    [
        ("fixed sequence", ["not established", "not established"]),
        ("co-primary", ["not established", "not established"]),
        ("holm", ["not established", "non-inferior"]),
    ],
)
def test_a_protocol_judges_its_texts_as_one_family(tmp_path, rule, verdicts):
    protocol = Protocol(
        claims=["c"], measure="loss", margin=0.01, alpha=0.05, method="paired-t", family=rule,
        data={"smoke": ["hard", "easy"]}, seeds={"smoke": [0, 1, 2]}, stop="all",
    )  # fmt: skip
    rows, factors = [], {"hard": (1.01, 1.02, 1.015), "easy": (1.001, 1.002, 1.0)}
    for text, scale in factors.items():
        for seed, factor in enumerate(scale):
            rows.append(("s", f"arm=a,text={text}", seed, "loss", "all", "bits", 1.2))
            rows.append(("s", f"arm=b,text={text}", seed, "loss", "all", "bits", 1.2 * factor))
    write_rows(tmp_path / "s" / "seeds.csv", SEEDS, rows)
    write_rows(tmp_path / "s" / "clock_seeds.csv", SEEDS, [])
    asked = [
        COMPARISON | {"baseline": f"arm=a,text={text}", "candidates": [f"arm=b,text={text}"]}
        for text in ("easy", "hard")
    ]
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump({"bounds": asked, "claims": []}))
    write_bounds(
        tmp_path / "claims.yaml", tmp_path, tmp_path / "bounds.csv", lambda study: (protocol, ["hard", "easy"])
    )
    found = read_bounds(tmp_path / "bounds.csv").set_index(["method", "candidate"])
    assert found.loc[("paired-t", "arm=b,text=easy"), "verdict"] == "non-inferior"
    assert [found.loc[("paired-t", f"arm=b,text={text}"), "family_verdict"] for text in ("hard", "easy")] == verdicts
    assert set(found.loc[[row[0] != "paired-t" for row in found.index], "family_verdict"]) == {""}
