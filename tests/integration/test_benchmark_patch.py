"""The benchmark runs as a user would run it: on made weights, on files, and with a word where it can't."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

ROOT = Path(__file__).parents[2]


def benchmark(*arguments):
    command = [sys.executable, "-m", "benchmarks.patch", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


def rows_of(text):
    return {line.split()[0]: line.split() for line in text.splitlines() if line and "  " in line}


def test_made_weights_give_the_whole_table():
    done = benchmark("--mib", 2, "--lr", "1e-5", "--threads", 1, "--repeats", 2, "--rare")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    listed = {"relative", "context", "published_zstd1", "xor_zstd1", "zstd_patch_from"}
    assert {*listed, "relative_digests", "context_digests", "public_decode"} <= set(rows)
    assert rows["relative_digests"][1:5] == rows["relative"][1:5]  # the same frame
    sizes = {
        name: int(row[1].replace(",", "")) for name, row in rows.items() if name in ("relative", "published_zstd1")
    }
    assert sizes["relative"] < sizes["published_zstd1"]
    assert rows["published_zstd1"][3] == "1.000"
    assert "conditional entropy" in done.stdout


def test_files_are_read_and_what_a_codec_can_not_carry_is_left_out(tmp_path):
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(256, 64, generator=generator).bfloat16(), "steps": torch.arange(100)}
    for name, moved in (("a", 0), ("b", 1)):
        state = {key: tensor.clone() for key, tensor in base.items()}
        state["w"].view(torch.int16)[::7, ::5] += moved
        state["steps"] += moved
        (tmp_path / name).mkdir()
        save_file(state, tmp_path / name / "model.safetensors")
    done = benchmark(tmp_path / "a", tmp_path / "b", "--threads", 1, "--repeats", 1)
    assert done.returncode == 0, done.stderr
    assert "published_zstd1 is left out: the published layout would cast tensor 'steps'" in done.stderr
    rows = rows_of(done.stdout)
    assert "relative" in rows
    assert "published_zstd1" not in rows
    assert "conditional entropy" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(["a"], 2, "two models are needed, or none"), (["a", "b"], 1, "a: no safetensors file")],
    ids=["one model", "no such file"],
)
def test_a_wrong_call_ends_with_what_is_wrong(arguments, code, said):
    done = benchmark(*arguments)
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].endswith(said)
    assert "Traceback" not in done.stderr
