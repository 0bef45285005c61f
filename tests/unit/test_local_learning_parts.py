"""The parts of the local_learning experiment that need no process of their own, and one small row end to end."""

import csv
import json
import math
import pickle
import time

import numpy as np
import pytest
import torch

from thinwire.data import ByteText
from thinwire.models import ByteTransformer, ByteTransformerConfig
from thinwire_lab.experiments import local_learning
from thinwire_lab.experiments.local_learning_memory import PeakSampler, tree_pss
from thinwire_lab.experiments.local_learning_text import TextBatches, held_out_bits, named_seed
from thinwire_lab.plan import Row
from thinwire_lab.recorder import Recorder

CONTEXT = 8


@pytest.fixture
def assets(tmp_path):
    """A corpus whose bytes are easy to learn: the alphabet, again and again."""
    folder = tmp_path / "assets" / "texts" / "enwiki"
    folder.mkdir(parents=True)
    for split, size in (("train", 3000), ("validation", 600), ("test", 900)):
        (np.arange(size) % 26 + 97).astype(np.uint8).tofile(folder / f"{split}.bin")
    return tmp_path / "assets"


def config(**changes):
    values = {
        "part": "quality", "blocks": 4, "stages": 2, "width": 16, "heads": 2, "context": CONTEXT, "batch": 4,
        "steps": 30, "held_out": 3, "warmup": 5,
    }  # fmt: skip
    return local_learning.Config.model_validate({**values, **changes})


def recorded(config, assets, out, seed=0):
    row = Row(
        study="local_learning", scale="smoke", run=f"seed={seed}", cell="", seed=seed, config=config.model_dump(),
        threads=1, timed=False, gpus=0, memory_mb=6000, minutes=30, asynchronous=False, keeps_versions=False, needs={},
        seconds=1.0,
    )  # fmt: skip
    out.mkdir()
    record = Recorder(row, out, assets=assets, inputs={}, versions=None, wandb="disabled")
    local_learning.run(config, record)
    record.finish()
    return out


def read(path):
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def test_batches_depend_on_seed_and_step_alone(assets):
    batches = TextBatches(assets / "texts" / "enwiki", 3, 4, CONTEXT)
    again = TextBatches(assets / "texts" / "enwiki", 3, 4, CONTEXT)
    assert torch.equal(batches(7), again(7))
    assert not torch.equal(batches(7), batches(8))
    assert not torch.equal(batches(7), TextBatches(assets / "texts" / "enwiki", 4, 4, CONTEXT)(7))
    assert batches(7).shape == (4, CONTEXT + 1)


def test_batches_travel_without_their_text(assets):
    batches = TextBatches(assets / "texts" / "enwiki", 3, 4, CONTEXT)
    first = batches(0)
    sent = pickle.dumps(batches)
    assert len(sent) < 1000
    assert torch.equal(pickle.loads(sent)(0), first)


def test_named_seeds_are_apart():
    seeds = {named_seed(s, *names) for s in (0, 1) for names in (("batch", 0), ("batch", 1), ("initial weights",))}
    assert len(seeds) == 6
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_held_out_text_of_an_untrained_model_costs_eight_bits_a_byte(assets):
    model = ByteTransformer(
        ByteTransformerConfig(blocks=2, width=16, heads=2, context=CONTEXT), generator=torch.Generator()
    )
    bits = held_out_bits(model, assets / "texts" / "enwiki", 3)
    assert bits == pytest.approx([8.0] * 3, abs=1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        held_out_bits(model, assets / "texts" / "enwiki", 100)


def test_held_out_bits_are_those_of_the_test_part(assets):
    """A model that predicts the successor in the alphabet with certainty p pays -log2 p for every byte."""
    folder = assets / "texts" / "enwiki"
    model = ByteTransformer(
        ByteTransformerConfig(blocks=1, width=256, heads=2, context=CONTEXT), generator=torch.Generator()
    )
    with torch.no_grad():
        model.embedding.copy_(torch.eye(256))
        successor = torch.tensor([97 + (b - 97 + 1) % 26 if 97 <= b < 123 else b for b in range(256)])
        model.readout.weight.copy_(torch.eye(256)[successor].T / 2)
    # The readout sees one entry of sqrt(256) = 16 and 255 zeros: logit 8 for the successor, 0 for the others.
    expected = -math.log2(math.exp(8) / (math.exp(8) + 255))
    assert held_out_bits(model, folder, 2) == pytest.approx([expected] * 2, rel=1e-3)
    assert len(ByteText(folder).test) >= 2 * (16 * CONTEXT + 1)


def test_peak_memory_sees_what_is_touched():
    before = tree_pss()
    assert before["Pss"] > before["Pss_Anon"] > 0
    with PeakSampler() as sampler:
        held = torch.ones(64 << 20, dtype=torch.uint8)
        while sampler.samples < 3:
            time.sleep(0.01)
    rise = sampler.peak["Pss_Anon"] - before["Pss_Anon"]
    assert held.nbytes * 0.9 < rise < held.nbytes * 1.5


@pytest.mark.parametrize("arm", ["global_backprop", "rgc_sync"])
def test_a_quality_row_learns_repeats_itself_and_says_what_it_measured(assets, tmp_path, arm):
    out, again = (recorded(config(arm=arm), assets, tmp_path / name) for name in ("one", "two"))
    assert (out / "metrics.csv").read_bytes() == (again / "metrics.csv").read_bytes()
    rows = read(out / "metrics.csv")
    by_name = {name: [float(r["value"]) for r in rows if r["metric"] == name] for name in {r["metric"] for r in rows}}
    assert len(by_name["loss"]) == 30
    assert by_name["bytes_trained"] == [30 * 4 * CONTEXT]
    assert by_name["bits_per_byte"][0] == pytest.approx(sum(by_name["segment_bits_per_byte"]) / 3)
    assert by_name["bits_per_byte"][0] < 5.0
    assert {r["metric"] for r in read(out / "clock.csv")} == {"train_seconds"}
    assert len(json.loads((out / "run.json").read_text(encoding="utf-8"))["notes"]["load_before"]) == 3


def test_throughput_interleaves_its_arms_and_rates_them_against_the_best(assets, tmp_path):
    out = recorded(
        config(part="throughput", repeats=2, repeat_steps=2, global_threads=[1, 2]), assets, tmp_path / "out"
    )
    rows = read(out / "clock.csv")
    rates = {(r["scope"], int(r["step"])): float(r["value"]) for r in rows if r["metric"] == "throughput"}
    assert set(rates) == {
        (arm, step) for arm in ("rgc_async", "global_backprop_1", "global_backprop_2") for step in (0, 1)
    }
    best = json.loads((out / "run.json").read_text(encoding="utf-8"))["notes"]["best_global"]
    ratios = [float(r["value"]) for r in rows if r["metric"] == "throughput_ratio"]
    assert ratios == pytest.approx([rates["rgc_async", step] / rates[best, step] for step in (0, 1)])
    assert read(out / "metrics.csv") == []
