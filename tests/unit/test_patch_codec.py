"""The study's codecs bring versions over, its bound is the entropy it claims, and its run fills the tables."""

import csv
import dataclasses
import math

import numpy as np
import pytest
import torch

from thinwire.patch import diff, state_digest
from thinwire.patch.bits import bits_of
from thinwire.sync import DirectoryStore, Publisher
from thinwire_lab.analysis.reaches import load_reaches
from thinwire_lab.config import load_study
from thinwire_lab.experiments.patch_codec import Config, run
from thinwire_lab.experiments.patch_codec_bound import entropy_bound
from thinwire_lab.experiments.patch_codec_rivals import (
    Step,
    codecs,
    hashing_codecs,
    public_decode,
    slice_of,
    undo,
)
from thinwire_lab.experiments.patch_codec_speed import Summary, Timing, time_codecs
from thinwire_lab.plan import Row, plan_study
from thinwire_lab.provenance import SOURCES
from thinwire_lab.recorder import Recorder

CONFIGS = SOURCES.parent / "configs"


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
    return Step.of(base, target, 1)


def copy_of(state):
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("codec", [*codecs(), *hashing_codecs()], ids=lambda codec: codec.name)
def test_every_codec_brings_the_version_over(codec):
    base, target = chain(2)
    state = copy_of(base)
    step = step_of(base, target)
    data = codec.write(step)
    codec.read(data, state, step)
    assert state_digest(state) == step.target_tree.root
    assert codec.write(step) == data == codec.write(step.compared())
    undo(state, step, step.patch())
    assert state_digest(state) == step.base_tree.root


@pytest.mark.parametrize("codec", codecs(), ids=lambda codec: codec.name)
def test_every_codec_takes_tied_tensors_once(codec):
    base, target = chain(2)
    base["tied"], target["tied"] = base["model.a"], target["model.a"]
    state = copy_of({name: tensor for name, tensor in base.items() if name != "tied"})
    state["tied"] = state["model.a"]
    step = step_of(base, target)
    codec.read(codec.write(step), state, step)
    assert state_digest(state) == step.target_tree.root
    assert step.full_bytes == sum(base[name].nbytes for name in ("model.a", "model.b", "model.norm"))


def test_a_slice_is_of_whole_changed_tensors_that_fit():
    base, target = chain(2)
    base["unchanged"] = target["unchanged"] = torch.zeros(10)
    step = step_of(base, target)
    changed = {part.name for part in step.patch().tensors}
    assert set(slice_of(step, 10**9).base) == changed
    assert set(slice_of(step, base["model.b"].nbytes).base) == {"model.b"}
    assert set(slice_of(step, 1).base) == {min(changed, key=lambda name: base[name].nbytes)}


def test_the_public_way_of_decoding_finds_the_same_changes():
    base, target = chain(2)
    base["float"], target["float"] = torch.zeros(3, 2, 5), torch.zeros(3, 2, 5)
    target["float"][2, 1, 3] = target["float"][0, 0, 0] = 1.5
    step = step_of(base, target)
    published = next(codec for codec in codecs() if codec.name == "published_zstd1")
    found = public_decode(published.write(step))
    patch = step.patch()
    assert list(found) == [part.name for part in patch.tensors]
    for part in patch.tensors:
        (rows, columns), values = found[part.name]
        width = math.prod(base[part.name].shape[1:])
        assert torch.equal(rows.long() * width + columns, torch.from_numpy(part.positions))
        assert np.array_equal(bits_of(values), part.bits)
        assert values.dtype == base[part.name].dtype


def test_timing_pairs_within_repeats_and_leaves_the_base():
    base, target = chain(2)
    step, state = step_of(base, target), copy_of(base)
    timing = time_codecs(step, state, [*codecs(), *hashing_codecs()], repeats=3, slow_repeats=1)
    assert state_digest(state) == step.base_tree.root
    assert {len(rates) for rates in (timing.equal, timing.digest, timing.public)} == {3}
    for codec in [*codecs(), *hashing_codecs()]:
        if codec.reach == "version":
            assert (
                len(timing.encode[codec.name]) == len(timing.decode[codec.name]) == (1 if codec.pace == "slow" else 3)
            )
        else:
            assert codec.name not in timing.encode
    assert all(rate > 0 for side in (timing.encode, timing.decode) for rates in side.values() for rate in rates)
    with pytest.raises(ValueError, match="knows its patch"):
        time_codecs(step.compared(), state, codecs(), repeats=1, slow_repeats=1)


def test_ratios_are_formed_within_repeats():
    timing = Timing([10.0, 20.0, 40.0], [], [1.0, 2.0, 4.0], {"a": [5.0, 20.0, 10.0]}, {"a": [3.0, 6.0]})
    assert timing.over_equal(timing.encode, "a") == Summary(0.5, 0.25, 1.0)
    assert timing.over_equal(timing.encode, "a").spread == 1.5
    assert timing.over_public("a") == Summary(3.0, 3.0, 3.0)


def test_codecs_are_told_the_patch_once():
    base, target = chain(2)
    compared = step_of(base, target).compared()
    emptied = dataclasses.replace(compared, target=base)  # a comparison now would find nothing
    for codec in codecs():
        if codec.name.startswith("published") or codec.name in ("pairs_raw", "relative", "context"):
            assert codec.write(emptied) == codec.write(compared)


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
    config = {"source": "x", "pairs": 2, "slow_pairs": 1, "rare_pairs": 1, "timed_pairs": 1, "repeats": 2}
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
    assert {line["step"] for line in trips if line["scope"] in ("zstd_patch_from", "bsdiff4", "dense")} == {"4"}
    assert {line["step"] for line in trips if line["scope"] == "context"} == {"2", "4"}
    assert {line["step"] for line in tables["clock"]} == {"4"}
    sizes = {line["scope"]: float(line["value"]) for line in tables["metrics"] if line["metric"] == "bits_per_change"}
    assert sizes["relative"] < sizes["published_zstd1"] < sizes["pairs_raw"]
    recorded = {line["metric"] for table in tables.values() for line in table}
    assert {measure.metric for measure in load_study("patch_codec").measures} <= recorded
    extra = {line["scope"]: float(line["value"]) for line in tables["clock"] if line["metric"] == "extra_memory"}
    assert set(extra) == {f"{encoding}_{side}" for encoding in ("relative", "context") for side in ("encode", "decode")}
    assert all(mebibytes < 16 for mebibytes in extra.values())  # of versions of a tenth of a MiB
    rates = {line["scope"] for line in tables["clock"] if line["metric"] == "encode_rate"}
    assert {"relative", "relative_digests", "context", "published_gzip6"} <= rates
    assert "public_decode" in {line["scope"] for line in tables["clock"] if line["metric"] == "decode_rate"}


def test_every_reach_of_the_study_is_measured_by_a_run_of_it():
    measures = {measure.name: measure for measure in load_study("patch_codec").measures}
    timed = {codec.name for codec in [*codecs(), *hashing_codecs()]}
    scopes = {
        "anchor_share": {"coded", "raw"},
        "extra_memory": {f"{word}_{side}" for word in ("relative", "context") for side in ("encode", "decode")},
    }
    mine = [reach for reach in load_reaches(CONFIGS / "claims.yaml") if reach.study == "patch_codec"]
    assert len(mine) > 20
    for reach in mine:
        assert measures[reach.measure].metric == reach.measure
        assert reach.scope in scopes.get(reach.measure, timed)
        assert reach.cell in {row.cell for row in plan_study("patch_codec", "laptop", CONFIGS)}


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
