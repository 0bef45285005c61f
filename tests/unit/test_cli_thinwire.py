"""The command line on real files: results, exit codes, one line of refusal and nothing written."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from thinwire import cli
from thinwire.cli import app
from thinwire.patch import diff, encode, encode_anchor, state_digest
from thinwire.patch import frame as frames
from thinwire.patch.files import undo_place

RUNNER = CliRunner()
COMMAND = [sys.executable, "-c", "from thinwire.cli import main; main()"]


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
    # safetensors writes metadata in an order that differs from call to call: the two files get the same header
    header = (tmp_path / "old.safetensors").read_bytes()[:-6000]
    data = (tmp_path / "new.safetensors").read_bytes()[-6000:]
    (tmp_path / "new.safetensors").write_bytes(header + data)
    return tmp_path


def tree_of(folder):
    """Every name below a folder, with the bytes of the files."""
    return {path: path.read_bytes() if path.is_file() else None for path in sorted(folder.rglob("*"))}


def half_patched(model, frame):
    """Leave ``model`` as a patch in place does whose process is killed before the model is whole."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from thinwire.patch import undo\n"
        "undo._step = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name.startswith('wrote') else None\n"
        "undo.apply_in_place(Path(sys.argv[1]), Path(sys.argv[2]).read_bytes())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, model, frame], check=False, timeout=120)
    assert done.returncode == -9


@pytest.mark.parametrize("encoding", [e.value for e in cli.Encoding if e.value in frames.ENCODINGS])
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


@pytest.mark.parametrize("kind", ["single", "folder"])
def test_a_patch_in_place_makes_the_same_files_as_one_into_a_copy(models, kind):
    old, new, out = (models / (n if kind == "folder" else f"{n}.safetensors") for n in ("old", "new", "out"))
    frame = models / "p.frame"
    call("diff", old, new, "-o", frame)
    assert call("apply", old, frame, "-o", out).exit_code == 0
    result = call("apply", old, frame, "--in-place")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    assert call("verify", old, frame).exit_code == 0
    if kind == "single":
        assert old.read_bytes() == out.read_bytes() == new.read_bytes()
    else:
        for file in sorted(out.glob("*.safetensors")):
            assert file.read_bytes() == (old / file.name).read_bytes() == (new / file.name).read_bytes()
    assert not [path for path in models.rglob("*") if path.name.startswith(".")]
    refused(call("apply", old, frame, "--in-place"), "wrong base")
    refused(call("apply", new, frame, "--in-place"), "wrong base")


def test_what_does_more_than_change_values_is_not_applied_in_place(models):
    old, frame = models / "old.safetensors", models / "p.frame"
    state = load_file(old)
    before = old.read_bytes()
    for target, message in (
        ({**state, "z": torch.ones(2)}, "adds, reshapes or re-types tensor 'z'"),
        ({**state, "a": state["a"].reshape(25, 40)}, "adds, reshapes or re-types tensor 'a'"),
        ({**state, "a": state["a"].half()}, "adds, reshapes or re-types tensor 'a'"),
        ({"a": state["a"]}, "removes tensor 'b'"),
        ({**state, "b": state["a"]}, "ties tensors 'a', 'b'"),
    ):
        frame.write_bytes(encode(diff(state, target), state))
        refused(call("apply", old, frame, "--in-place"), message)
        assert call("apply", old, frame, "-o", models / "copy.safetensors").exit_code == 0
        assert state_digest(load_file(models / "copy.safetensors")) == state_digest(target)
    frame.write_bytes(encode_anchor(state))
    refused(call("apply", old, frame, "--in-place"), "is an anchor")
    assert old.read_bytes() == before


def test_an_interrupted_patch_is_found_and_undone(models):
    old, new, frame, out = (models / n for n in ("old.safetensors", "new.safetensors", "p.frame", "out"))
    call("diff", old, new, "-o", frame)
    before = old.read_bytes()
    half_patched(old, frame)
    torn = old.read_bytes()
    assert torn not in (before, new.read_bytes())
    for words in (
        ("verify", old, frame),
        ("anchor", old, "-o", out),
        ("diff", old, new, "-o", out),
        ("diff", new, old, "-o", out),
        ("inspect", frame, "--base", old),
        ("apply", new, frame, "-o", old),
    ):
        refused(call(*words), f"`thinwire restore {old}`")
    assert old.read_bytes() == torn
    assert not out.exists()
    result = call("restore", old)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("\n") == 1
    assert "an interrupted patch of" in result.stderr
    assert old.read_bytes() == before
    assert not undo_place(old).exists()
    assert "no interrupted patch" in call("restore", old).stdout
    half_patched(old, frame)
    result = call("apply", old, frame, "-o", out)
    assert result.exit_code == 0, result.output
    assert "the old bits were put back" in result.stderr
    assert old.read_bytes() == before
    assert out.read_bytes() == new.read_bytes()
    half_patched(old, frame)
    result = call("apply", old, frame, "--in-place")
    assert result.exit_code == 0, result.output
    assert "the old bits were put back" in result.stderr
    assert old.read_bytes() == new.read_bytes()


def test_a_folder_is_undone_as_a_whole(models):
    folder, frame = models / "old", models / "p.frame"
    call("diff", folder, models / "new", "-o", frame)
    before = tree_of(folder)
    half_patched(folder, frame)
    shard = folder / "model-00001-of-00002.safetensors"
    refused(call("verify", shard, frame), f"`thinwire restore {folder}`")
    refused(call("restore", shard), f"`thinwire restore {folder}`")
    refused(call("anchor", folder, "-o", models / "q"), f"`thinwire restore {folder}`")
    assert call("restore", folder).exit_code == 0
    assert tree_of(folder) == before


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


def test_inspect_counts_moves(tmp_path):
    bits = torch.tensor([0, 100, 200, 300, 400, 500, 600], dtype=torch.int16)
    moved = bits + torch.tensor([0, 1, -1, 2, -3, 4, 9], dtype=torch.int16)
    save_file({"w": bits.view(torch.bfloat16), "s": torch.tensor(0.0)}, tmp_path / "old")
    save_file({"w": moved.view(torch.bfloat16), "s": torch.tensor(-0.0)}, tmp_path / "new")
    call("diff", tmp_path / "old", tmp_path / "new", "-o", tmp_path / "f", "--encoding", "absolute")
    result = call("inspect", tmp_path / "f", "--json", "--base", tmp_path / "old")
    assert result.exit_code == 0, result.output
    told = {"1": 2, "2": 1, "3-4": 2, "9-16": 1, f"{(1 << 30) + 1}-{1 << 31}": 1}
    assert json.loads(result.stdout)["moves"] == told
    text = call("inspect", tmp_path / "f", "--base", tmp_path / "old").stdout
    assert text.endswith(f"{(1 << 30) + 1}-{1 << 31}            1\n")
    refused(call("inspect", tmp_path / "f", "--base", tmp_path / "new"), "wrong base")
    assert call("inspect", tmp_path / "f", "--base", tmp_path / "none").exit_code == 2


def test_an_input_is_never_written_over(models):
    old, new, frame = models / "old.safetensors", models / "new.safetensors", models / "p.frame"
    call("diff", old, new, "-o", frame)
    link = models / "link"
    os.link(old, link)
    before = tree_of(models)
    refused(call("diff", old, new, "-o", old), "is not written over")
    refused(call("diff", old, new, "-o", new), "is not written over")
    refused(call("diff", old, new, "-o", link), "is not written over")
    refused(call("anchor", old, "-o", old), "is not written over")
    refused(call("apply", old, frame, "-o", frame), "is not written over")
    refused(call("apply", old, frame, "-o", old), "is not written over")
    for name in ("model-00001-of-00002.safetensors", "config.json"):
        refused(call("diff", models / "old", models / "new", "-o", models / "new" / name), "is not written over")
    assert tree_of(models) == before
    assert call("diff", models / "old", models / "new", "-o", models / "new" / "from-old.frame").exit_code == 0


def test_what_dead_processes_left_is_removed_and_what_living_ones_write_is_not(models):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    frame = models / "p.frame"
    left = models / f".p.frame.{dead.pid}.partial"
    living = models / ".p.frame.1.partial"
    other = models / f".q.frame.{dead.pid}.partial"
    for path in (left, living, other):
        path.write_bytes(b"half")
    assert call("diff", models / "old", models / "new", "-o", frame).exit_code == 0
    assert not left.exists()
    assert living.exists()
    assert other.exists()
    folder = models / f".out.{dead.pid}.partial"
    folder.mkdir()
    (folder / "half.safetensors").write_bytes(b"half")
    assert call("apply", models / "old", frame, "-o", models / "out").exit_code == 0
    assert not folder.exists()


def test_a_killed_command_leaves_nothing_for_ever(models):
    old, frame, out = models / "old.safetensors", models / "p.frame", models / "out.safetensors"
    call("diff", old, models / "new.safetensors", "-o", frame)
    script = (
        "import os, signal\n"
        "from thinwire import cli\n"
        "cli.typer.echo = lambda line, err=False: os.kill(os.getpid(), signal.SIGKILL)\n"
        "cli.main()\n"
    )
    words = [sys.executable, "-c", script, "apply", old, frame, "-o", out]
    done = subprocess.run(words, check=False, timeout=120)
    assert done.returncode == -9
    assert len(list(models.glob(".out.safetensors.*.partial"))) == 1
    assert not out.exists()
    assert call("apply", old, frame, "-o", out).exit_code == 0
    assert not list(models.glob(".out.safetensors.*.partial"))


def test_progress_is_shown_on_a_terminal_only(models):
    frame = models / "p.frame"
    call("diff", models / "old", models / "new", "-o", frame)
    words = [*COMMAND, "verify", models / "new", frame]
    piped = subprocess.run(words, capture_output=True, check=False, timeout=120)
    assert (piped.returncode, piped.stderr) == (0, b"")
    reader, writer = pty.openpty()
    shown = subprocess.run(words, stdout=subprocess.PIPE, stderr=writer, check=False, timeout=120)
    os.close(writer)
    said = os.read(reader, 1 << 16)
    os.close(reader)
    assert shown.returncode == 0
    assert shown.stdout == piped.stdout
    assert b"reading new" in said


def test_a_model_of_unaligned_data_is_patched_in_place(tmp_path):
    """A header without padding, as other writers make it: the same tensors lie at odd places of the file."""
    values = np.arange(60, dtype=np.uint8)
    for word, change in (("old", 0), ("new", 1)):
        text = b'{"w":{"dtype":"F32","shape":[15],"data_offsets":[0,60]}}'
        text += b" " * ((1 - len(text)) % 8)
        (tmp_path / word).write_bytes(len(text).to_bytes(8, "little") + text + (values + change).tobytes())
    old, new, frame, out = (tmp_path / n for n in ("old", "new", "frame", "out"))
    assert call("diff", old, new, "-o", frame).exit_code == 0
    assert call("apply", old, frame, "-o", out).exit_code == 0
    assert call("apply", old, frame, "--in-place").exit_code == 0
    assert old.read_bytes() == out.read_bytes() == new.read_bytes()


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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a file that is always full")
@pytest.mark.parametrize("name", ["old", "old.safetensors"])
def test_a_patch_in_place_that_can_not_be_told_is_undone(models, name):
    old, frame = models / name, models / "p.frame"
    call("diff", old, models / name.replace("old", "new"), "-o", frame)
    before = {path: path.read_bytes() for path in models.rglob("*") if path.is_file()}
    words = [*COMMAND, "apply", old, frame, "--in-place"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, check=False, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == b"thinwire: [Errno 28] No space left on device\n"
    assert {path: path.read_bytes() for path in models.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "index", [b"[]", b"null", b"7", b'{"metadata":null}', b'{"metadata":[]}', b"{torn", b"\xff\xfe", b"[" * 100_000]
)
def test_a_harmed_index_of_shards_is_refused_by_name(models, index):
    frame, place = models / "p.frame", models / "old" / "model.safetensors.index.json"
    call("diff", models / "old", models / "new", "-o", frame)
    place.write_bytes(index)
    refused(call("apply", models / "old", frame, "-o", models / "out"), f"{place} is no ")
    assert not (models / "out").exists()


def test_an_index_of_another_name_follows_the_tensors(models):
    new = load_file(models / "new.safetensors")
    del new["b"]
    save_file({**new, "z": torch.zeros(3)}, models / "z.safetensors")
    index, frame = models / "old" / "model.safetensors.index.json", models / "p.frame"
    index.rename(index.with_name("diffusion_pytorch_model.safetensors.index.json"))
    call("diff", models / "old", models / "z.safetensors", "-o", frame)
    assert call("apply", models / "old", frame, "-o", models / "out").exit_code == 0
    written = json.loads((models / "out" / "diffusion_pytorch_model.safetensors.index.json").read_bytes())
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert written["weight_map"] == {"a": shards[0], "c": shards[1], "z": shards[1]}


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

    monkeypatch.setattr(cli, "open_model", fail)
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
    "words",
    [[], ["diff"], ["nothing"], ["inspect", "absent"], ["diff", ".", ".", "-o", "x", "--encoding", "y"]]
    + [["apply", ".", __file__], ["apply", ".", __file__, "-o", "x", "--in-place"]],
)
def test_wrong_usage_ends_with_2(words):
    assert call(*words).exit_code == 2
