"""The exactness contract of docs/FORMAT.md on every encoding: bits, shapes, densities, memory layouts, threads."""

import numpy as np
import pytest
import torch

from thinwire.patch import apply, decode, decode_anchor, diff, encode, encode_anchor, state_digest
from thinwire.patch.bits import DTYPES, UNSIGNED, bits_of, empty_bits
from thinwire.patch.frame import CODINGS, ENCODINGS, inspect
from thinwire.patch.streams import CHUNK

EXACT = [word for word in ENCODINGS if word != "published"]
SPECIAL = [
    0x0000,  # +0
    0x8000,  # -0
    0x7F80,  # +infinity
    0xFF80,  # -infinity
    0x7FC0,  # quiet NaN
    0x7F81,  # signalling NaN
    0xFFFF,  # NaN with a full payload
    0x0001,  # least subnormal
    0x007F,  # greatest subnormal
    0x3F80,  # 1
]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_pair_of_special_bf16_patterns(encoding):
    values = np.array(SPECIAL, dtype=np.uint16)
    old, fresh = (grid.ravel().copy() for grid in np.meshgrid(values, values))
    base = {"w": torch.from_numpy(old.view(np.int16)).view(torch.bfloat16)}
    target = {"w": torch.from_numpy(fresh.view(np.int16)).view(torch.bfloat16)}
    result = apply(base, decode(encode(diff(base, target), base, encoding), base))
    np.testing.assert_array_equal(bits_of(result["w"]), fresh)


@pytest.mark.parametrize("encoding", EXACT)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("share", [0.001, 0.05, 0.6, 1.0])
def test_every_dtype_at_every_density(encoding, dtype, share):
    rng = np.random.default_rng(5)
    base, bits = empty_bits(dtype, (40, 83))
    target, fresh = empty_bits(dtype, (40, 83))
    top = 2 if dtype == torch.bool else 256
    bits.view(np.uint8)[:] = rng.integers(0, top, bits.nbytes, dtype=np.uint8)
    mask = rng.random(bits.size) < share
    fresh[:] = np.where(mask, bits ^ bits.dtype.type(1), bits)
    patch = diff({"w": base}, {"w": target})
    assert patch.changed == mask.sum()
    result = apply({"w": base}, decode(encode(patch, {"w": base}, encoding), {"w": base}))
    assert result["w"].dtype == dtype
    np.testing.assert_array_equal(bits_of(result["w"]), fresh)


@pytest.mark.parametrize("encoding", EXACT)
def test_several_dtypes_in_one_version(encoding):
    rng = np.random.default_rng(6)
    base, target = {}, {}
    for dtype in DTYPES:
        base[str(dtype)], bits = empty_bits(dtype, (50,))
        target[str(dtype)], fresh = empty_bits(dtype, (50,))
        bits.view(np.uint8)[:] = rng.integers(0, 2, bits.nbytes, dtype=np.uint8)
        fresh[:] = np.where(rng.random(50) < 0.2, bits ^ UNSIGNED[bits.itemsize](1), bits)
    patch = diff(base, target)
    assert state_digest(apply(base, decode(encode(patch, base, encoding), base))) == state_digest(target)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1])
def test_rows_that_cross_a_chunk_on_one_and_two_threads(encoding, size):
    base = {"w": torch.zeros(1, size, dtype=torch.bfloat16)}
    target = {"w": base["w"].clone()}
    bits_of(target["w"])[[0, size // 2, size - 1]] = np.array([1, 0x8000, 0xFFFF], dtype=np.uint16)
    patch = diff(base, target, threads=2)
    frames = [encode(patch, base, encoding, threads=threads) for threads in (1, 2)]
    assert frames[0] == frames[1]
    for threads in (1, 2):
        result = apply(base, decode(frames[0], base, threads=threads))
        assert state_digest(result) == patch.target_digest


@pytest.mark.parametrize("encoding", ["absolute", "relative"])
def test_sparse_streams_longer_than_a_chunk(encoding):
    base = {"w": torch.zeros(CHUNK + 77, dtype=torch.float32)}
    target = {"w": torch.rand(CHUNK + 77, generator=torch.Generator().manual_seed(0)) + 1}
    patch = diff(base, target)
    frame = encode(patch, base, encoding)
    assert state_digest(apply(base, decode(frame, base))) == patch.target_digest


@pytest.mark.parametrize("compress", [True, False])
def test_an_anchor_that_crosses_a_chunk(compress):
    state = {"w": torch.randn(CHUNK + 5, generator=torch.Generator().manual_seed(0)).bfloat16(), "e": torch.empty(2, 0)}
    frames = [encode_anchor(state, compress=compress, threads=threads) for threads in (1, 2)]
    assert frames[0] == frames[1]
    assert state_digest(decode_anchor(frames[0], threads=2)) == state_digest(state)
    assert len(frames[0]) < (0.8 if compress else 1.001) * state["w"].nbytes


def test_absolute_frames_hold_the_bits_themselves():
    base = {"w": torch.zeros(1000, dtype=torch.bfloat16)}
    target = {"w": base["w"].clone()}
    target["w"][::100] = 3.0
    frame = encode(diff(base, target), base, "absolute")
    once = apply(base, decode(frame, base))
    patch = decode(frame, base)
    again = apply(once, patch, base_digest=patch.base_digest)  # a repeated patch is harmless
    assert state_digest(again) == state_digest(once) == patch.target_digest


def test_auto_takes_the_cheapest_coding_for_each_tensor():
    generator = torch.Generator().manual_seed(0)
    base = {name: torch.randn(60_000, generator=generator) for name in ("few", "moved", "replaced", "wild")}
    target = {name: tensor.clone() for name, tensor in base.items()}
    target["few"][::1000] *= 1.0001
    bits_of(target["moved"])[:] ^= np.uint32(1 << 20)
    target["replaced"][:] = torch.randint(0, 4, (60_000,), generator=generator)
    target["wild"][::1000] = 1.0
    base["often"] = torch.randn(60_000, generator=generator).bfloat16()
    target["often"] = base["often"].clone()
    bits_of(target["often"])[::20] += np.uint16(1)
    patch = diff(base, target)
    frame = encode(patch, base)
    codings = {line.name: line.coding for line in inspect(frame).header.tensors}
    assert codings == {
        "few": "context",
        "moved": "dense",
        "often": "context",
        "replaced": "absolute",
        "wild": "absolute",
    }
    assert len(frame) <= min(len(encode(patch, base, word)) for word in ("absolute", "relative", "dense"))
    assert state_digest(apply(base, decode(frame, base))) == patch.target_digest
    del base["often"], target["often"]
    few = inspect(encode(diff(base, target), base)).header.tensors
    assert few[0].coding == "relative"  # 60 changes do not pay for a model


def test_relative_is_smaller_than_published_on_small_moves():
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(500, 2000, generator=generator).bfloat16()}
    target = {"w": base["w"].clone()}
    mask = torch.rand(1_000_000, generator=generator) < 0.003
    bits_of(target["w"])[mask.numpy()] += np.uint16(1)
    patch = diff(base, target)
    sizes = {word: inspect(encode(patch, base, word)).payload_bytes for word in CODINGS}
    assert sizes["relative"] < 0.5 * sizes["published"]


def test_frames_are_read_from_any_buffer():
    base = {"w": torch.zeros(10)}
    frame = encode(diff(base, {"w": torch.ones(10)}), base)
    for buffer in (frame, bytearray(frame), memoryview(frame), np.frombuffer(frame, dtype=np.uint8)):
        assert decode(buffer, base).changed == 10


def test_context_is_smaller_than_relative_where_the_exponent_tells():
    generator = torch.Generator().manual_seed(0)
    base = {"w": torch.randn(500, 2000, generator=generator).bfloat16()}
    target = {"w": (base["w"].float() + 2e-5 * torch.randn(500, 2000, generator=generator)).bfloat16()}
    patch = diff(base, target)
    sizes = {word: inspect(encode(patch, base, word)).frame_bytes for word in ("context", "relative", "published")}
    assert patch.changed > 2000
    assert sizes["context"] < 0.7 * sizes["relative"]
    assert sizes["context"] < 0.35 * sizes["published"]


@pytest.mark.parametrize("encoding", EXACT)
def test_a_frame_is_the_same_on_any_number_of_threads(encoding):
    generator = torch.Generator().manual_seed(1)
    base = {f"w{i}": torch.randn(300, 200, generator=generator).bfloat16() for i in range(5)}
    base["n"] = torch.randn(500, generator=generator)
    target = {name: tensor + 1e-3 * tensor for name, tensor in base.items()}
    patch = diff(base, target)
    frames = {encode(patch, base, encoding, threads=threads) for threads in (1, 2, 3)}
    assert len(frames) == 1
