"""The command line on real files: results, exit codes, one line of refusal and nothing written."""

import json
import os

import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from thinwire import cli
from thinwire.cli import app
from thinwire.patch import diff, encode, encode_anchor, state_digest

RUNNER = CliRunner()


def call(*words):
    return RUNNER.invoke(app, [str(word) for word in words])


def refused(result, message):
    assert result.exit_code == 1, result.output
    assert result.stderr.count("\n") == 1
    assert message in result.stderr
    assert result.stderr.startswith("thinwire: ")


@pytest.fixture
def models(tmp_path):
    """Two versions as single files, and as folders of two shards with an index, a config and metadata."""
    generator = torch.Generator().manual_seed(0)
    old = {name: torch.randn(40, 25, generator=generator).bfloat16() for name in ("a", "b", "c")}
    new = {name: tensor.clone() for name, tensor in old.items()}
    new["a"][3, :5] += 1
    new["c"][0, 0] = -0.0
    for word, state in (("old", old), ("new", new)):
        save_file(state, tmp_path / f"{word}.safetensors", metadata={"format": "pt", "note": "kept"})
        folder = tmp_path / word
        folder.mkdir()
        shards = {"model-00001-of-00002.safetensors": ("a", "b"), "model-00002-of-00002.safetensors": ("c",)}
        for file, names in shards.items():
            save_file({name: state[name] for name in names}, folder / file, metadata={"format": "pt"})
        index = {
            "metadata": {"total_size": 6000},
            "weight_map": {n: file for file, names in shards.items() for n in names},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        (folder / "config.json").write_text('{"vocab_size": 40}')
    return tmp_path


@pytest.mark.parametrize("encoding", ["auto", "published", "absolute", "relative", "dense"])
def test_diff_apply_and_verify_files(models, encoding):
    old, new, frame, out = (models / n for n in ("old.safetensors", "new.safetensors", "p.frame", "out.safetensors"))
    result = call("diff", old, new, "-o", frame, "--encoding", encoding)
    assert result.exit_code == 0, result.output
    assert "6 elements" in result.stdout
    assert call("verify", new, frame).exit_code == 0
    refused(call("verify", old, frame), "has state digest")
    result = call("apply", old, frame, "-o", out)
    assert result.exit_code == 0, result.output
    assert state_digest(load_file(out)) == state_digest(load_file(new))
    with safe_open(out, framework="pt") as source:
        assert source.metadata() == {"format": "pt", "note": "kept"}


def test_folders_keep_shards_index_and_companions(models):
    frame, out = models / "p.frame", models / "out"
    assert call("diff", models / "old", models / "new", "-o", frame).exit_code == 0
    assert call("apply", models / "old", frame, "-o", out).exit_code == 0
    for file in sorted((models / "new").iterdir()):
        if file.suffix == ".safetensors":
            assert state_digest(load_file(out / file.name)) == state_digest(load_file(file))
        else:
            assert json.loads((out / file.name).read_text()) == json.loads(file.read_text())
    assert sorted(path.name for path in out.iterdir()) == sorted(path.name for path in (models / "new").iterdir())
    refused(call("apply", models / "old", frame, "-o", out), "exists and is not written over")


def test_added_and_removed_tensors_reach_the_index(models):
    folder = models / "new"
    state = load_file(folder / "model-00001-of-00002.safetensors")
    save_file({"a": state["a"], "z": torch.ones(3)}, folder / "model-00001-of-00002.safetensors")
    frame, out = models / "p.frame", models / "out"
    assert call("diff", models / "old", folder, "-o", frame).exit_code == 0
    assert call("apply", models / "old", frame, "-o", out).exit_code == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == {
        "a": "model-00001-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
        "z": "model-00002-of-00002.safetensors",
    }
    assert index["metadata"]["total_size"] == 2000 + 2000 + 12
    assert call("verify", out, frame).exit_code == 0


@pytest.mark.parametrize("raw", [[], ["--raw"]])
def test_anchor_brings_a_version_to_any_base(models, raw):
    frame, out = models / "a.frame", models / "out"
    result = call("anchor", models / "new", "-o", frame, *raw)
    assert result.exit_code == 0, result.output
    assert "of the plain bytes" in result.stdout
    assert call("apply", models / "old", frame, "-o", out).exit_code == 0
    assert call("verify", out, frame).exit_code == 0


def test_inspect_prints_words_and_json(models):
    frame = models / "p.frame"
    call("diff", models / "old", models / "new", "-o", frame)
    result = call("inspect", frame, "--json")
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["kind"] == "patch"
    assert said["changed"] == 6
    assert said["total"] == 3000
    assert [(line["name"], line["changed"]) for line in said["tensors"]] == [("a", 5), ("c", 1)]
    assert said["frame_bytes"] == frame.stat().st_size
    words = call("inspect", frame)
    assert words.exit_code == 0
    assert said["target_digest"] in words.stdout
    assert "bfloat16" in words.stdout


def test_refusals_write_nothing(models):
    frame, out = models / "p.frame", models / "out"
    call("diff", models / "old", models / "new", "-o", frame)
    before = sorted(models.rglob("*"))
    refused(call("apply", models / "new", frame, "-o", out), "wrong base")
    harmed = frame.read_bytes()
    frame.write_bytes(harmed[:-1])
    refused(call("apply", models / "old", frame, "-o", out), "cut or extended")
    refused(call("inspect", frame), "cut or extended")
    frame.write_bytes(b"THINWIRE")
    refused(call("inspect", frame), "too few")
    (models / "old" / "model-00002-of-00002.safetensors").write_bytes(b"no tensors")
    refused(call("diff", models / "old", models / "new", "-o", models / "q.frame"), "no sound safetensors file")
    assert sorted(models.rglob("*")) == before


def test_folders_without_weights_or_with_a_name_twice_are_refused(models):
    (models / "empty").mkdir()
    refused(call("anchor", models / "empty", "-o", models / "q"), "holds no safetensors file")
    save_file({"a": torch.ones(1)}, models / "old" / "more.safetensors")
    refused(call("anchor", models / "old", "-o", models / "q"), "stands in more.safetensors")


def test_an_output_inside_its_own_base_is_refused(models):
    frame = models / "p.frame"
    call("diff", models / "old", models / "new", "-o", frame)
    before = sorted(models.rglob("*"))
    refused(call("apply", models / "old", frame, "-o", models / "old" / "out"), "lies inside")
    refused(call("diff", models / "old", models / "new", "-o", models / "new"), "is a folder")
    assert sorted(models.rglob("*")) == before


def test_a_result_that_can_not_be_told_is_not_written(models, monkeypatch):
    old, new, frame, out = (models / n for n in ("old.safetensors", "new.safetensors", "p.frame", "out"))
    call("diff", old, new, "-o", frame)
    before = sorted(models.rglob("*"))
    echo = typer.echo

    def full(line, err=False):
        if not err:
            raise OSError(28, "No space left on device")
        echo(line, err=err)

    monkeypatch.setattr(typer, "echo", full)
    refused(call("diff", old, new, "-o", models / "q.frame"), "No space left on device")
    refused(call("apply", old, frame, "-o", out), "No space left on device")
    assert sorted(models.rglob("*")) == before


def test_what_a_killed_process_of_this_number_left_is_replaced(models):
    frame, out = models / "p.frame", models / "out"
    call("diff", models / "old", models / "new", "-o", frame)
    left = models / f".out.{os.getpid()}.partial"
    left.mkdir()
    (left / "half.safetensors").write_bytes(b"half")
    assert call("apply", models / "old", frame, "-o", out).exit_code == 0
    assert not left.exists()
    assert not (out / "half.safetensors").exists()


def test_a_name_that_safetensors_keeps_for_itself_is_refused(models):
    old = load_file(models / "old.safetensors")
    frame = models / "p.frame"
    frame.write_bytes(encode(diff(old, {**old, "__metadata__": torch.ones(1)}), old))
    refused(call("apply", models / "old.safetensors", frame, "-o", models / "out"), "no safetensors file can hold")
    assert not (models / "out").exists()


def test_what_can_not_be_mapped_is_refused_by_name(models):
    (models / "folder.safetensors").mkdir()
    refused(call("anchor", models, "-o", models / "q"), f"{models}/folder.safetensors is no sound safetensors file")


def test_a_lack_of_memory_is_one_line(models, monkeypatch):
    def fail(path):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory\nat:")

    monkeypatch.setattr(cli, "read_checkpoint", fail)
    refused(call("anchor", models / "old", "-o", models / "q"), "can't allocate memory")


def test_inspect_prints_no_control_characters_of_a_name(models):
    frame = models / "p.frame"
    frame.write_bytes(encode_anchor({"a\nb\x1b[31m": torch.ones(1)}))
    assert r"'a\nb\x1b[31m'" in call("inspect", frame).stdout


def test_the_published_layout_refuses_in_one_line(models):
    save_file({"s": torch.tensor(1.0)}, models / "x.safetensors")
    save_file({"s": torch.tensor(2.0)}, models / "y.safetensors")
    result = call(
        "diff", models / "x.safetensors", models / "y.safetensors", "-o", models / "q", "--encoding", "published"
    )
    refused(result, "zero-dimensional tensor 's'")
    assert not (models / "q").exists()


@pytest.mark.parametrize(
    "words", [[], ["diff"], ["nothing"], ["inspect", "absent"], ["diff", ".", ".", "-o", "x", "--encoding", "y"]]
)
def test_wrong_usage_ends_with_2(words):
    assert call(*words).exit_code == 2
