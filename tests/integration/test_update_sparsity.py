"""The study's experiment from end to end on a small random model: what it records is what its versions say."""

import csv
import json
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thinwire.patch import state_digest
from thinwire.sync import DirectoryStore, Subscriber
from thinwire_lab.experiments import update_sparsity
from thinwire_lab.experiments.update_sparsity import Config, Versions, share_by_group
from thinwire_lab.plan import Row
from thinwire_lab.recorder import Recorder

CHARACTERS = ["<end>", "\n", *"0123456789+-*= "]
BASE = {
    "precision": "bf16",
    "lr": 2e-4,
    "warmup": 1,
    "steps": 10,
    "model": "tiny",
    "task": "arithmetic",
    "kinds": {"add_0_9": 1.0},
    "shots": 2,
    "prompts": 6,
    "group": 32,
    "max_tokens": 1,
    "temperature": 1.0,
    "compute": "float32",
    "device": "cpu",
    "keep_from": 0,
    "keep_count": 20,
}


def write_model(folder: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder)
    inner = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder)


def run(folder: Path, name: str, **values: object) -> tuple[dict[tuple[int, str, str], float], dict[str, object], Path]:
    if not (folder / "assets").exists():
        write_model(folder / "assets" / "tiny")
    config = Config.model_validate({**BASE, **values})
    row = Row(
        study="update_sparsity",
        scale="smoke",
        run=f"{name},seed=0",
        cell=name,
        seed=0,
        config=config.model_dump(mode="json"),
        threads=1,
        timed=False,
        gpus=0,
        memory_mb=1000,
        minutes=1,
        asynchronous=False,
        keeps_versions=True,
        needs={},
        seconds=1.0,
    )
    out, versions = folder / name, folder / f"{name}-versions"
    out.mkdir()
    versions.mkdir()
    record = Recorder(row, out, assets=folder / "assets", inputs={}, versions=versions, wandb="disabled")
    update_sparsity.run(config, record)
    record.finish()
    with (out / "metrics.csv").open(newline="") as file:
        rows = {(int(r["step"]), r["scope"], r["metric"]): float(r["value"]) for r in csv.DictReader(file)}
    return rows, json.loads((out / "run.json").read_text()), versions


@pytest.mark.parametrize("precision", ["bf16", "fp32_master"])
def test_recorded_sparsity_and_digests_are_those_of_the_kept_versions(tmp_path: Path, precision: str) -> None:
    rows, _, versions = run(tmp_path, "a", precision=precision)
    subscriber = Subscriber(DirectoryStore(versions))
    states = []
    for version in range(11):  # after steps 0 to 10
        states.append({name: tensor.clone() for name, tensor in subscriber.pull(version).items()})
        assert rows[version, "all", "state_digest"] == int(state_digest(states[-1])[:13], 16)
    total = sum(tensor.numel() for tensor in states[0].values())
    taught = {step: rows[step, "all", "has_advantage"] == 1 for step in range(1, 11)}
    assert sum(taught.values()) >= 8
    for step in range(1, 11):
        for lag in (1, 2, 4, 8):
            if lag > step or not all(taught[s] for s in range(step - lag + 1, step + 1)):
                assert (step, "all", f"sparsity_{lag}") not in rows
                continue
            pairs = [(states[step - lag][name], states[step][name]) for name in states[0]]
            equal = sum(int((a.view(torch.int16) == b.view(torch.int16)).sum()) for a, b in pairs)
            assert rows[step, "all", f"sparsity_{lag}"] == equal / total
    assert {scope for _, scope, metric in rows if metric == "sparsity_1"} == {
        "all",
        "embedding",
        "attention",
        "mlp",
        "norm",
    }
    longest = [(step, lag) for step in taught for lag in (2, 4) if (step, "all", f"sparsity_{lag}") in rows]
    assert longest
    for step, lag in longest:
        assert 0 < rows[step, "all", f"sparsity_{lag}"] < rows[step, "all", "sparsity_1"] <= 1
    densities = [value for (_, scope, metric), value in rows.items() if (scope, metric) == ("all", "gradient_density")]
    assert min(densities) > 0.9
    assert (0, "all", "sparsity_1") in rows  # the warm-up step is recorded, as step 0


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    run(tmp_path, "a", steps=3)
    run(tmp_path, "b", steps=3)
    assert (tmp_path / "a" / "metrics.csv").read_bytes() == (tmp_path / "b" / "metrics.csv").read_bytes()


def test_runs_of_one_seed_ask_the_same_and_a_cap_holds(tmp_path: Path) -> None:
    first, note, versions = run(tmp_path, "a", steps=3, keep_from=1, keep_count=2)
    second, _, _ = run(tmp_path, "b", steps=3, precision="fp32_master", lr=1e-4)
    assert first[0, "all", "reward"] == second[0, "all", "reward"]
    assert note["notes"]["versions"] == [1, 2]  # type: ignore[index]
    assert Subscriber(DirectoryStore(versions)).pull().keys() == Subscriber(DirectoryStore(versions)).pull(0).keys()


def test_steps_without_advantage_are_counted_and_left_out(tmp_path: Path) -> None:
    # one token can't hold the two digits of these answers, so nothing is ever right
    rows, _, _ = run(tmp_path, "a", kinds={"add_10_99": 1.0}, max_tokens=1, steps=2)
    assert rows[2, "all", "steps_without_advantage"] == 3
    assert all(metric not in {"sparsity_1", "gradient_density", "grad_norm"} for _, _, metric in rows)
    assert rows[1, "all", "state_digest"] == rows[2, "all", "state_digest"]


def test_a_gap_in_the_updates_breaks_every_lag_across_it() -> None:
    state = {"model.norm.weight": torch.zeros(4, dtype=torch.bfloat16)}
    versions = Versions(state)
    taught = [True, True, False, True, True]
    found = []
    for step, has_advantage in enumerate(taught):
        if has_advantage:
            state["model.norm.weight"][step % 4] += 1
        found.append(sorted(versions.compare(state, taught=has_advantage, full_rate=True)))
    assert found == [[1], [1, 2], [], [1], [1, 2]]


def test_shares_are_weighted_by_size() -> None:
    shares = share_by_group({"model.embed_tokens.weight": (1, 10), "model.layers.0.mlp.up_proj.weight": (30, 30)})
    assert shares == {"all": 31 / 40, "embedding": 0.1, "mlp": 1.0}
