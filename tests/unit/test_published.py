"""The published tables: every value with its source, shares as fractions, and the headline numbers of both papers."""

import csv
from pathlib import Path

import pytest

from thinwire_lab.analysis.plots import headline, read_published

PUBLISHED = Path(__file__).parents[2] / "configs" / "published"
FILES = sorted(PUBLISHED.glob("*.csv"))


def test_there_are_published_tables():
    assert {path.stem for path in FILES} >= {"sparsity_by_k", "sparsity_by_step", "codecs", "headlines"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_names_its_source(path):
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert rows
    assert all(row["source"].strip() and None not in row and None not in row.values() for row in rows)


@pytest.mark.parametrize("name", ["sparsity_by_k", "sparsity_by_step"])
def test_sparsities_are_shares(name):
    assert read_published(PUBLISHED, name)["mean"].between(0.9, 1.0).all()


def test_step_sparsity_by_model_spans_what_the_claim_says():
    table = read_published(PUBLISHED, "sparsity_by_k")
    plain = table[(table["training"] == "GRPO") & (table["lr"] == 3e-6) & (table["rollout_reuse"] == 1)]
    first = plain[plain["k"] == 1]["mean"]
    assert (len(first), round(first.min(), 4), round(first.max(), 4)) == (6, 0.9893, 0.9943)
    assert plain[plain["k"] == 8]["mean"].min() > 0.98
    assert plain[plain["k"] == 32]["mean"].min() == pytest.approx(0.974795)


@pytest.mark.parametrize(
    ("name", "value"),
    [("throughput_ratio", 1.382), ("quality_mean", 0.00841), ("quality_bound", 0.02095), ("rounds_vs_diloco", 17)],
)
def test_headlines(name, value):
    assert headline(PUBLISHED, name) == value


def test_the_memory_ratio_is_the_quotient_of_its_parts():
    parts = headline(PUBLISHED, "memory_rgc_gb") / headline(PUBLISHED, "memory_full_gb")
    assert headline(PUBLISHED, "memory_ratio") == pytest.approx(parts, abs=0.005)
