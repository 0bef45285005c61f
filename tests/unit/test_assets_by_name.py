"""Loaders by name: local places first, and one error that says what to place where."""

import json
import zipfile
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from thinwire.pretrained import PretrainedError, load_causal_lm, load_tokenizer
from thinwire_lab.assets import hub as asset_hub
from thinwire_lab.assets.checks import AssetError
from thinwire_lab.assets.hub import SETS, HubSet, build_enwik8, load_rows, written_questions
from thinwire_lab.assets.registry import build


class Chat:
    """The one call of a tokenizer that questions need."""

    def apply_chat_template(self, chat: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        assert (tokenize, add_generation_prompt) == (False, True)
        return f"<user>{chat[0]['content']}<assistant>"


def write_rows(folder: Path, name: str, rows: list[dict[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


def test_local_rows_become_questions(tmp_path: Path) -> None:
    write_rows(tmp_path / "gsm8k", "train", [{"question": "2 + 1000?", "answer": "So it is\n#### 1,002"}])
    write_rows(tmp_path / "math", "train", [{"problem": "Half?", "solution": r"It is \boxed{\frac12}."}])
    (gsm8k,) = written_questions("gsm8k", Chat(), tmp_path)  # type: ignore[arg-type]
    (math,) = written_questions("math", Chat(), tmp_path)  # type: ignore[arg-type]
    assert (gsm8k.answer, math.answer) == ("1002", r"\frac12")
    assert gsm8k.prompt.startswith("<user>2 + 1000?\n\nReason step by step")


def test_a_set_that_is_nowhere_is_named_with_its_place(tmp_path: Path) -> None:
    nowhere = HubSet("nobody/nothing", None, "train", "question", "answer")
    with pytest.raises(AssetError, match=r"mine .*nobody/nothing.* place its train\*\.parquet .* in .*/mine/"):
        load_rows("mine", nowhere, tmp_path)
    assert set(SETS) == {"math", "gsm8k", "mbpp"}


def test_tinystories_from_local_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "tinystories", "train", [{"text": "One day."}, {"text": " Two. "}])
    write_rows(tmp_path / "tinystories", "validation", [{"text": c} for c in "abc"])
    build("tinystories", tmp_path / "out", work=tmp_path)
    read = {part: (tmp_path / "out" / f"{part}.bin").read_bytes() for part in ("train", "validation", "test")}
    assert read == {"train": b"One day.\n\nTwo.\n\n", "validation": b"a\n\nc\n\n", "test": b"b\n\n"}


def test_enwik8_is_cut_by_position_and_checked_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssetError, match=r"place enwik8\.zip"):
        build_enwik8(tmp_path, tmp_path)
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", bytes(range(100)))
    with pytest.raises(AssetError, match="has 100 bytes where 100,000,000 are right"):
        build_enwik8(tmp_path, tmp_path)
    monkeypatch.setattr(asset_hub, "ENWIK8_BYTES", 100)
    monkeypatch.setattr(asset_hub, "ENWIK8_HELD_OUT", 5)
    build_enwik8(tmp_path, tmp_path)
    assert [len((tmp_path / f"{p}.bin").read_bytes()) for p in ("train", "validation", "test")] == [90, 5, 5]


def test_models_load_from_a_folder_or_fail_with_advice(tmp_path: Path) -> None:
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    LlamaForCausalLM(config).bfloat16().save_pretrained(tmp_path / "model")
    model = load_causal_lm(tmp_path / "model")
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert not model.training
    for load in (load_causal_lm, load_tokenizer):
        with pytest.raises(PretrainedError, match=r"neither a folder here nor reachable .* place its config\.json"):
            load(tmp_path / "nothing")
