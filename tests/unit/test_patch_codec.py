"""The study's codecs bring versions over, its bound is the entropy it claims, and its run fills the tables."""

import csv
import math

import numpy as np
import pytest
import torch

from thinwire.patch import diff, state_digest
from thinwire.patch.bits import bits_of
from thinwire.patch.digest import digest_tree
from thinwire.sync import DirectoryStore, Publisher
from thinwire_lab.config import load_study
from thinwire_lab.experiments.patch_codec import Config, Step, codecs, run
from thinwire_lab.experiments.patch_codec_bound import entropy_bound
from thinwire_lab.plan import Row
from thinwire_lab.recorder import Recorder


def chain(count=3):
    """Versions in which small weights move more often, as in training."""
    generator = torch.Generator().manual_seed(0)
    weights = {
        "model.a": torch.randn(300, 200, generator=generator) * 0.02,
        "model.b": torch.randn(40_000, generator=generator) * 0.5,
        "model.norm": torch.ones(64),
    }
    versions = []
    for _ in range(count):
        versions.append({name: tensor.bfloat16() for name, tensor in weights.items()})
        for tensor in weights.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=1e-5)
    return versions


def step_of(base, target):
    return Step(base, target, digest_tree(base), digest_tree(target), 1)


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
def test_every_codec_brings_the_version_over(codec):
    base, target = chain(2)
    state = {name: tensor.clone() for name, tensor in base.items()}
    step = step_of(base, target)
    codec.read(codec.write(step), state, step)
    assert state_digest(state) == step.target_tree.root
    assert codec.write(step) == codec.write(step)


def test_names_of_codecs_are_distinct_and_raw_pairs_cost_48_bits():
    names = [codec.name for codec in codecs()]
    assert len(set(names)) == len(names)
    assert names[0] == "published_zstd1"
    base, target = chain(2)
    pairs = next(codec for codec in codecs() if codec.name == "pairs_raw")
    assert len(pairs.write(step_of(base, target))) == 6 * diff(base, target).changed + 4 * len(base)


def test_the_bound_is_the_entropy_of_a_case_counted_by_hand():
    base = {"w": torch.tensor([1.0] * 8 + [2.0] * 4, dtype=torch.bfloat16)}
    target = {"w": base["w"].clone()}
    bits_of(target["w"])[[0, 3]] += np.array([1, 2], dtype=np.uint16)
    bits_of(target["w"])[8:12] += np.uint16(1)
    bound = entropy_bound(base, diff(base, target))
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    assert bound.position == pytest.approx(8 * quarter / 6)  # all of the exponent of 2 change: no bits
    assert bound.value == pytest.approx(2 / 6)  # two values at 1 bit each, four that are alike


def test_the_bound_counts_cells_by_tensor_for_positions_and_over_tensors_for_values():
    base = {name: torch.ones(4) for name in ("a", "b")}
    target = {name: tensor.clone() for name, tensor in base.items()}
    bits_of(target["a"])[:] += np.uint32(1)
    bits_of(target["b"])[0] -= np.uint32(3)
    bound = entropy_bound(base, diff(base, target))
    quarter = -(0.25 * math.log2(0.25) + 0.75 * math.log2(0.75))
    fifth = -(0.8 * math.log2(0.8) + 0.2 * math.log2(0.2))
    assert bound.position == pytest.approx(4 * quarter / 5)
    assert bound.value == pytest.approx(fifth)


def test_the_bound_refuses_what_it_can_not_count():
    with pytest.raises(ValueError, match="has none"):
        entropy_bound({}, diff({}, {}))
    base, target = {"i": torch.tensor([1])}, {"i": torch.tensor([2])}
    with pytest.raises(ValueError, match="no exponent"):
        entropy_bound(base, diff(base, target))


def row_of(config):
    return Row(
        study="patch_codec",
        scale="smoke",
        run="source=x,seed=0",
        cell="source=x",
        seed=0,
        config=config,
        threads=1,
        timed=True,
        gpus=0,
        memory_mb=6000,
        minutes=30,
        asynchronous=False,
        keeps_versions=False,
        needs={},
        seconds=1,
    )


def test_a_run_fills_both_tables(tmp_path):
    publisher = Publisher(DirectoryStore(tmp_path / "versions"), run_id="chain", anchor_every=100)
    versions = chain(4)
    for version in [*versions[:3], versions[2], versions[3], versions[3]]:  # some steps change nothing
        publisher.publish(version)
    config = {"source": "x", "pairs": 2, "timed_pairs": 1, "repeats": 2}
    record = Recorder(
        row_of(config),
        tmp_path / "out",
        assets=tmp_path,
        inputs={"versions": tmp_path / "versions"},
        versions=None,
        wandb="disabled",
    )
    run(Config.model_validate(config), record)
    record.finish()
    tables = {}
    for name in ("metrics", "clock"):
        with (tmp_path / "out" / f"{name}.csv").open() as file:
            tables[name] = list(csv.DictReader(file))
    trips = [line for line in tables["metrics"] if line["metric"] == "round_trip"]
    assert {line["value"] for line in trips} == {"1.0"}
    assert {line["scope"] for line in trips} == {codec.name for codec in codecs()}
    assert {line["step"] for line in trips} == {"2", "4"}
    assert {line["step"] for line in tables["clock"]} == {"4"}
    sizes = {line["scope"]: float(line["value"]) for line in tables["metrics"] if line["metric"] == "bits_per_change"}
    assert sizes["relative"] < sizes["published_zstd1"] < sizes["pairs_raw"]
    recorded = {line["metric"] for table in tables.values() for line in table}
    assert {measure.metric for measure in load_study("patch_codec").measures} <= recorded


def test_a_chain_of_one_version_is_refused(tmp_path):
    Publisher(DirectoryStore(tmp_path / "versions"), run_id="chain", anchor_every=1).publish(chain(1)[0])
    record = Recorder(
        row_of({"source": "x"}),
        tmp_path / "out",
        assets=tmp_path,
        inputs={"versions": tmp_path / "versions"},
        versions=None,
        wandb="disabled",
    )
    with pytest.raises(ValueError, match="holds 1 versions, of which no two"):
        run(Config(source="x"), record)
