"""The parts of the local_learning experiment that need no process of their own, and one small row end to end."""

import csv
import json
import math
import pickle

import numpy as np
import pytest
import torch

from thinwire.data import ByteText
from thinwire.models import ByteTransformer, ByteTransformerConfig
from thinwire_lab.experiments import local_learning
from thinwire_lab.experiments.local_learning_speed import TimedArm, as_rows, baselines
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


def test_timed_arms_are_read_and_others_refused():
    assert TimedArm.parse("rgc_async 4x7") == ("rgc_async", 4, 7, None)
    assert TimedArm.parse("rgc_async 2x1 staleness=0").scope == "rgc_async_2x1_staleness_0"
    assert TimedArm.parse("global_ddp 2x3").cores == 6
    for wrong in ("rgc_async", "rgc_async 2", "rgc_async 0x1", "rgc_async 2x1 stale", "rgc_async  2x1"):
        with pytest.raises(ValueError, match="is written like 'rgc_async 2x1'"):
            TimedArm.parse(wrong)
    with pytest.raises(ValueError, match="no schedule 'backprop'"):
        config(timed_arms=["backprop 1x1"])


def test_the_judged_arm_is_timed_and_none_twice():
    with pytest.raises(ValueError, match="'rgc_async 4x1' is not among timed_arms"):
        config(judged_arm="rgc_async 4x1")
    with pytest.raises(ValueError, match="names an arm twice"):
        config(timed_arms=["rgc_async 2x1", "rgc_async 2x1"])


RATES = {
    TimedArm.parse(arm): values
    for arm, values in {
        "global_backprop 1x1": [100, 102],
        "global_backprop 1x2": [150, 160],
        "global_ddp 2x1": [170, 180],
        "global_1f1b 2x1": [120, 125],
        "local_async 2x1": [190, 200],
        "rgc_async 2x1 staleness=0": [188, 190],
        "rgc_async 4x1": [180, 150],
    }.items()
}


def ratios(rates, judged="rgc_async 4x1"):
    return {(r.metric, r.scope, r.repeat): r.value for r in as_rows(rates, TimedArm.parse(judged))}


def test_ratios_pair_the_repeats_of_one_run():
    found = ratios(RATES)
    assert found["throughput", "global_ddp_2x1", 1] == 180
    assert found["gain", "rgc_async_4x1", 0] == found["gain", "judged", 0] == pytest.approx(180 / 150)
    assert found["gain", "global_backprop_1x1", 1] == pytest.approx(102 / 160)
    assert found["gain_over_groups", "rgc_async_2x1_staleness_0", 1] == pytest.approx(190 / 180)
    assert found["lead", "judged", 1] == pytest.approx(150 / 180)
    assert found["share_of_limit", "local_async_2x1", 0] == pytest.approx(190 / 200)
    assert ("lead", "global_ddp_2x1", 0) not in found


def test_baselines_are_of_the_best_median_and_those_not_timed_are_left_out():
    scopes = {name: arm.scope for name, arm in baselines(RATES).items()}
    assert scopes == {
        "best_backprop": "global_backprop_1x2", "best_group": "global_ddp_2x1", "best_global": "global_ddp_2x1"
    }  # fmt: skip
    only_local = {arm: values for arm, values in RATES.items() if not arm.schedule.startswith("global_")}
    assert baselines(only_local) == {}
    assert {metric for metric, _, _ in ratios(only_local)} == {"throughput"}


def test_factors_lead_from_one_thread_to_the_consensus():
    found = ratios(RATES)
    factors = {scope: found["factor", scope, 0] for scope in ("threads", "groups", "locking", "readout")}
    assert factors == pytest.approx({"threads": 1.5, "groups": 170 / 150, "locking": 190 / 170, "readout": 188 / 190})
    assert math.prod(factors.values()) == pytest.approx(188 / 100)
    few = ratios({arm: values for arm, values in RATES.items() if arm.schedule != "local_async"})
    assert {scope for metric, scope, _ in few if metric == "factor"} == {"threads", "groups"}


def test_throughput_takes_turns_and_records_every_arm(assets, tmp_path):
    arms = ["global_backprop 1x1", "global_ddp 2x1", "local_async 2x1", "rgc_async 2x1 staleness=0"]
    row = config(part="throughput", repeats=2, repeat_steps=2, timed_arms=arms, judged_arm=arms[-1])
    rows = read(recorded(row, assets, tmp_path / "out") / "clock.csv")
    notes = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["notes"]
    assert (notes["best_backprop"], notes["best_group"]) == ("global_backprop_1x1", "global_ddp_2x1")
    rates = {(r["scope"], int(r["step"])): float(r["value"]) for r in rows if r["metric"] == "throughput"}
    assert set(rates) == {(TimedArm.parse(arm).scope, step) for arm in arms for step in (0, 1)}
    lead = [float(r["value"]) for r in rows if r["metric"] == "lead" and r["scope"] == "judged"]
    best = max(("global_backprop_1x1", "global_ddp_2x1"), key=lambda scope: rates[scope, 0] + rates[scope, 1])
    assert notes["best_global"] == best
    assert lead == pytest.approx([rates["rgc_async_2x1_staleness_0", i] / rates[best, i] for i in (0, 1)])
    assert read(tmp_path / "out" / "metrics.csv") == []
