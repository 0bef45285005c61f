"""The study's experiment from end to end, on small models: real trainers, the same tables at every run."""

import csv
from pathlib import Path

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thinwire_lab.experiments import outer_rounds
from thinwire_lab.experiments.outer_rounds import Config
from thinwire_lab.plan import Row
from thinwire_lab.recorder import Recorder

CHARACTERS = ["<end>", "\n", *"0123456789+-*= "]
GRPO = {
    "task": "grpo",
    "trainers": 2,
    "inner_steps": 2,
    "lr": 1e-4,
    "model": "small",
    "kinds": {"add_0_9": 1.0},
    "shots": 2,
    "prompts": 6,
    "group": 32,
    "max_tokens": 1,
}
TEXT = {"trainers": 2, "inner_steps": 2, "lr": 1e-4, "blocks": 1, "width": 8, "heads": 1, "context": 16, "held_out": 8}


@pytest.fixture(scope="module")
def assets(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("assets")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(CHARACTERS), num_key_value_heads=1, tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).bfloat16().save_pretrained(folder / "small")
    inner = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder / "small")
    for corpus, sentence in (("stories", b"Once upon a time. "), ("enwiki", b"An article about it. ")):
        (folder / "texts" / corpus).mkdir(parents=True)
        for split in ("train", "validation", "test"):
            (folder / "texts" / corpus / f"{split}.bin").write_bytes(sentence * 100)
    return folder


def run(assets, out, values, *, threads=2, inputs=None, keep=False):
    config = Config.model_validate(values)
    row = Row(
        study="outer_rounds",
        scale="smoke",
        run="seed=0",
        cell="",
        seed=0,
        config=config.model_dump(mode="json"),
        threads=threads,
        timed=False,
        gpus=0,
        memory_mb=1000,
        minutes=1,
        asynchronous=False,
        keeps_versions=keep,
        needs={},
        seconds=1.0,
    )
    versions = out.with_name(f"{out.name}-versions")
    out.mkdir()
    versions.mkdir()
    record = Recorder(
        row, out, assets=assets, inputs=inputs or {}, versions=versions if keep else None, wandb="disabled"
    )
    outer_rounds.run(config, record)
    record.finish()
    with (out / "metrics.csv").open(encoding="utf-8") as lines:
        rows = {(int(r["step"]), r["metric"], r["scope"]): float(r["value"]) for r in csv.DictReader(lines)}
    return rows, versions


def test_two_runs_of_a_row_write_the_same_bytes_and_the_counts_agree(assets, tmp_path):
    values = GRPO | {"arm": "pulseloco", "steps": 4}
    rows, _ = run(assets, tmp_path / "first", values)
    run(assets, tmp_path / "second", values)
    assert (tmp_path / "first" / "metrics.csv").read_bytes() == (tmp_path / "second" / "metrics.csv").read_bytes()
    dense = 4 * sum(p.numel() for p in LlamaForCausalLM.from_pretrained(assets / "small").parameters())
    for step in (1, 2):
        scopes = ("trainer0", "trainer1", "all")
        sent, other, mean = (rows[step, "round_bytes", scope] for scope in scopes)
        assert mean == (sent + other) / 2
        assert rows[step, "diloco_over_sent", "all"] == pytest.approx(dense / mean)
        assert rows[step, "ddp_over_sent", "trainer0"] == pytest.approx(2 * dense / sent)
        assert len({rows[step, "state_digest", scope] for scope in scopes}) == 1
        assert rows[step, "reward", "trainer0"] != rows[step, "reward", "trainer1"]  # questions of their own
    assert rows[1, "state_digest", "all"] != rows[2, "state_digest", "all"]


def test_ddp_books_the_gradients_of_h_steps(assets, tmp_path):
    rows, _ = run(assets, tmp_path / "ddp", GRPO | {"arm": "ddp", "steps": 1})
    dense = 4 * sum(p.numel() for p in LlamaForCausalLM.from_pretrained(assets / "small").parameters())
    assert rows[1, "round_bytes", "all"] == 2 * dense
    assert rows[1, "ddp_over_sent", "all"] == 1.0
    assert rows[1, "sent_share", "all"] == 1.0


def test_a_text_row_goes_on_from_what_the_base_row_kept(assets, tmp_path):
    base, kept = run(
        assets, tmp_path / "base", TEXT | {"task": "base", "arm": "ddp", "corpus": "stories", "steps": 20}, keep=True
    )
    assert base[10, "validation_bits_per_byte", "all"] < base[0, "validation_bits_per_byte", "all"] - 1
    text, _ = run(
        assets,
        tmp_path / "text",
        TEXT | {"task": "text", "arm": "diloco", "corpus": "stories", "steps": 2},
        inputs={"base": kept},
    )
    assert text[0, "validation_bits_per_byte", "all"] == base[10, "validation_bits_per_byte", "all"]
    assert text[1, "round_bytes", "all"] == base[1, "round_bytes", "all"] / 2


def test_rows_that_cannot_run_say_why(assets, tmp_path):
    with pytest.raises(ValueError, match="2 trainers need as many threads; the row has 1"):
        run(assets, tmp_path / "threads", GRPO | {"arm": "ddp", "steps": 1}, threads=1)
    with pytest.raises(ValueError, match="starts from a base row's weights"):
        run(assets, tmp_path / "base", TEXT | {"task": "text", "arm": "diloco", "steps": 2})
    with pytest.raises(ValueError, match="steps 3 is no multiple of inner_steps 2"):
        Config.model_validate(GRPO | {"arm": "diloco", "steps": 3})
