"""Frames written once stay readable for good, and the page of the format tells the truth.

``tests/golden/frames`` holds, for each version of the format, one frame of each encoding as that version wrote it. A
reader that can't read them any more breaks every stored chain, so these files are never written anew: another version
of the format gets files of its own.
"""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard

from thinwire.patch import apply, decode, decode_anchor, diff, encode, state_digest
from thinwire.patch.bits import bits_of, empty_bits, tied_groups
from thinwire.patch.frame import inspect
from thinwire.patch.published import pack_published
from thinwire.patch.wire import Packer

FRAMES = Path(__file__).parent / "frames"
PAGE = Path(__file__).parents[2] / "docs" / "FORMAT.md"


def row(dtype, shape, start, step):
    tensor, bits = empty_bits(dtype, shape)
    bits[:] = (start + step * np.arange(bits.size, dtype=np.uint64)).astype(bits.dtype)
    return tensor


def golden_base():
    shared = row(torch.float16, (4, 2), 0x3C00, 1)
    return {
        "model.weight": row(torch.bfloat16, (30, 20), 0x3C80, 7),
        "model.norm": row(torch.float32, (9,), 0x3F800000, 12345),
        "model.head": shared,
        "model.embed": shared,
    }


def golden_target():
    target = {name: tensor.clone() for name, tensor in golden_base().items()}
    target["model.embed"] = target["model.head"]
    bits_of(target["model.weight"])[[0, 1, 300, 599]] ^= np.array([1, 0x8000, 3, 0x7F80], dtype=np.uint16)
    bits_of(target["model.norm"])[8] += np.uint32(2)
    bits_of(target["model.head"])[5] -= np.uint16(1)
    return target


def golden_schema():
    target = golden_target()
    return {
        "model.weight": target["model.weight"].reshape(20, 30),
        "model.norm": target["model.norm"],
        "model.scale": row(torch.float8_e4m3fn, (), 0x38, 1),
        "model.flags": row(torch.bool, (0, 3), 0, 1),
    }


TARGETS = {
    "published": golden_target,
    "absolute": golden_target,
    "relative": golden_target,
    "dense": golden_target,
    "context": golden_target,
    "schema": golden_schema,
}


def assert_same(state, expected):
    assert sorted(state) == sorted(expected)
    for name, tensor in expected.items():
        assert (state[name].dtype, state[name].shape) == (tensor.dtype, tensor.shape), name
        np.testing.assert_array_equal(bits_of(state[name]), bits_of(tensor), err_msg=name)


PATCHES = [(version, word) for version in (1, 2) for word in TARGETS if (version, word) != (1, "context")]


@pytest.mark.parametrize(("version", "word"), PATCHES)
def test_a_stored_patch_is_still_read(version, word):
    base, target = golden_base(), TARGETS[word]()
    frame = (FRAMES / str(version) / f"{word}.frame").read_bytes()
    assert inspect(frame).version == version
    patch = decode(frame, base)
    result = apply(base, patch)
    assert_same(result, target)
    assert state_digest(result) == inspect(frame).target_digest
    assert tied_groups(result) == tied_groups(target)


@pytest.mark.parametrize(("version", "word"), [(1, "planes"), (1, "raw"), (2, "coded"), (2, "raw")])
def test_a_stored_anchor_is_still_read(version, word):
    frame = (FRAMES / str(version) / f"{word}.frame").read_bytes()
    assert inspect(frame).version == version
    state = decode_anchor(frame)
    assert_same(state, golden_base())
    assert tied_groups(state) == (("model.embed", "model.head"),)


def packed(model):
    out = Packer()
    model.write(out)
    return bytes(out.data)


@pytest.mark.parametrize("word", TARGETS)
def test_the_writer_still_writes_the_same_header_and_plain_payload(word):
    base = golden_base()
    stored = inspect((FRAMES / "2" / f"{word}.frame").read_bytes())
    written = inspect(encode(diff(base, TARGETS[word]()), base, "relative" if word == "schema" else word))
    assert (written.version, written.digests) == (stored.version, stored.digests)
    assert [packed(model) for model in written.header.models] == [packed(model) for model in stored.header.models]
    assert written.header.segments == stored.header.segments
    assert written.header.tensors == stored.header.tensors
    assert written.header.whole == stored.header.whole
    assert written.header.stream_sizes() == stored.header.stream_sizes()


def test_the_published_layout_byte_for_byte():
    base = {
        "w": torch.zeros(3, 300, dtype=torch.bfloat16),
        "v": torch.zeros(70_000, dtype=torch.float32),
    }
    target = {name: tensor.clone() for name, tensor in base.items()}
    for r, c, value in [(0, 5, 1.0), (0, 290, 2.0), (2, 1, -1.0), (2, 299, 0.5)]:
        target["w"][r, c] = value
    target["v"][[3, 69_999]] = torch.tensor([1.0, 2.0])
    records = [
        ("v", [70_000], 2, "float32", "int32", "uint16", 8, 4, 8),
        ("w", [3, 300], 4, "bfloat16", "uint8", "uint16", 4, 8, 8),
    ]
    tensors, offset = [], 0
    for name, shape, changed, value, row_type, column_type, rows, columns, values in records:
        tensors.append(
            {
                "name": name,
                "shape": shape,
                "num_nonzero": changed,
                "value_dtype": value,
                "row_dtype": row_type,
                "col_dtype": column_type,
                "indices_offset": offset,
                "indices_size": rows + columns,
                "rows_size": rows,
                "cols_size": columns,
                "values_offset": offset + rows + columns,
                "values_size": values,
            }
        )
        offset += rows + columns + values
    header = json.dumps({"version": 31, "tensors": tensors}, separators=(",", ":")).encode()
    data = struct.pack("<2i2H2f", 3, 69_996, 0, 0, 1.0, 2.0)
    data += struct.pack("<4B4H4H", 0, 0, 2, 0, 5, 285, 1, 298, 0x3F80, 0x4000, 0xBF80, 0x3F00)
    expected = struct.pack("<I", len(header)) + header + data
    patch = diff(base, target)
    assert pack_published(patch, base) == expected
    frame = encode(patch, base, "published")
    assert zstandard.ZstdDecompressor().decompress(frame[-32 - inspect(frame).payload_bytes : -32]) == expected
    assert_same(apply(base, decode(frame, base)), target)


@pytest.mark.parametrize(
    ("base", "target", "message"),
    [
        ({"s": torch.tensor(1.0)}, {"s": torch.tensor(2.0)}, "zero-dimensional tensor 's'"),
        ({"i": torch.tensor([1])}, {"i": torch.tensor([2])}, "would cast tensor 'i'"),
        ({"w": torch.ones(2)}, {"w": torch.ones(2), "x": torch.ones(1)}, "can't carry added"),
    ],
)
def test_the_published_layout_refuses_by_name_what_it_can_not_carry(base, target, message):
    with pytest.raises(ValueError, match=message):
        encode(diff(base, target), base, "published")


def test_an_empty_published_patch_is_an_empty_list():
    base = {"w": torch.ones(2)}
    patch = diff(base, base)
    assert pack_published(patch, base) == struct.pack("<I", 27) + b'{"version":31,"tensors":[]}'
    assert decode(encode(patch, base, "published"), base).changed == 0


@pytest.mark.parametrize("encoding", ["relative", "context"])
def test_the_worked_frames_of_the_page_are_what_it_says(encoding):
    block = re.search(rf"<!-- worked {encoding} frame -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block, f"docs/FORMAT.md has no worked {encoding} frame"
    frame = bytes.fromhex("".join(text[:48] for text in block[1].splitlines()))  # the words stand right of the digits
    base = {"norm": torch.tensor([1.0, -0.0]), "w": torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.bfloat16)}
    target = {
        "norm": torch.tensor([1.0, 0.0]),
        "w": torch.tensor([0.5, 1.0078125, 2.0, 3.984375], dtype=torch.bfloat16),
    }
    assert_same(apply(base, decode(frame, base)), target)
    assert encode(diff(base, target), base, encoding) == frame
