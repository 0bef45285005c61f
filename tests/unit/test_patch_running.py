"""The running digest: of the version alone, carried on by the changes alone."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.patch import (
    FrameError,
    apply,
    decode,
    diff,
    encode,
    encode_anchor,
    state_digest,
)
from thinwire.patch.bits import DTYPES, bits_of, empty_bits
from thinwire.patch.frame import inspect
from thinwire.patch.running import RunningDigest, running_digest


def noise(dtype, size, rng):
    tensor, bits = empty_bits(dtype, (size,))
    bits.view(np.uint8)[:] = rng.integers(0, 2, bits.nbytes, dtype=np.uint8)
    return tensor


def test_it_binds_name_dtype_shape_bits_and_place():
    state = {"w": torch.tensor([1.0, 2.0, 3.0])}
    others = [
        {"v": state["w"]},
        {"w": state["w"].view(torch.int32)},
        {"w": state["w"].reshape(3, 1)},
        {"w": torch.tensor([2.0, 1.0, 3.0])},
        {"w": torch.tensor([1.0, 2.0, -3.0])},
        {"w": state["w"], "e": torch.empty(0)},
        {},
    ]
    digests = {running_digest(other).hex for other in [state, *others]}
    assert len(digests) == len(others) + 1
    assert running_digest({"w": state["w"].clone()}) == running_digest(state)


def test_plus_and_minus_zero_differ():
    assert running_digest({"w": torch.zeros(4)}) != running_digest({"w": -torch.zeros(4)})


@pytest.mark.parametrize("threads", [1, 2])
def test_it_does_not_depend_on_threads_or_layout(threads):
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(300, 7001, generator=generator).bfloat16()
    turned = plain.t().contiguous().t()
    assert running_digest({"w": plain}, threads=1) == running_digest({"w": turned}, threads=threads)


def test_text_and_back():
    digest = running_digest({"w": torch.ones(3)})
    assert len(digest.hex) == 32
    assert RunningDigest.parse(digest.hex) == digest
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        RunningDigest.parse("ab")


@given(st.data())
@settings(max_examples=100)
def test_the_changes_alone_lead_to_the_digest_of_the_target(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    base, target = {}, {}
    for index in range(data.draw(st.integers(1, 4))):
        dtype = data.draw(st.sampled_from(DTYPES))
        size = data.draw(st.integers(0, 40))
        base[f"w{index}"] = noise(dtype, size, rng)
        target[f"w{index}"] = base[f"w{index}"].clone()
        row = bits_of(target[f"w{index}"])
        row[rng.random(size) < data.draw(st.sampled_from([0.05, 0.9]))] ^= row.dtype.type(1)
    for kind in data.draw(st.sets(st.sampled_from(["added", "removed", "reshaped", "tied", "untied", "tied at last"]))):
        if kind == "added":
            target["extra"] = noise(torch.float32, 5, rng)
        if kind == "removed":
            base["gone"] = noise(torch.int64, 3, rng)
        if kind == "reshaped":
            base["view"] = noise(torch.bfloat16, 12, rng)
            target["view"] = base["view"].clone().reshape(3, 4)
        if kind == "tied":
            base["x"] = base["y"] = noise(torch.float16, 9, rng)
            target["x"] = target["y"] = base["x"].clone()
            bits_of(target["x"])[4] ^= np.uint16(1)
        if kind == "untied":
            base["p"] = base["q"] = noise(torch.float16, 9, rng)
            target["p"], target["q"] = base["p"].clone(), base["p"].clone()
            bits_of(target["q"])[2] ^= np.uint16(1)
        if kind == "tied at last":
            base["r"], base["s"] = noise(torch.float32, 9, rng), noise(torch.float32, 7, rng)
            target["r"] = target["s"] = base["r"].clone()
            bits_of(target["r"])[1] ^= np.uint32(1)
    patch = diff(base, target)
    assert patch.base_running == running_digest(base).hex
    assert patch.target_running == running_digest(target).hex


def test_both_digests_agree_over_a_long_chain():
    rng = np.random.default_rng(8)
    generator = torch.Generator().manual_seed(8)
    shapes = {"a": (40, 33), "b": (7,), "c": (3, 5)}
    dtypes = {"a": torch.bfloat16, "b": torch.float32, "c": torch.float16}
    state = {name: torch.randn(shape, generator=generator).to(dtypes[name]) for name, shape in shapes.items()}
    held = {name: tensor.clone() for name, tensor in state.items()}
    running = running_digest(held)
    for _ in range(300):
        fresh = {name: tensor.clone() for name, tensor in state.items()}
        for tensor in fresh.values():
            row = bits_of(tensor)
            row[rng.integers(0, row.size, 3)] += row.dtype.type(1)
        frame = encode(diff(state, fresh), state, str(rng.choice(["context", "relative", "absolute", "dense"])))
        patch = decode(frame, held, base_running=running)
        apply(held, patch, in_place=True, base_running=running)
        running = RunningDigest.parse(patch.target_running)
        state = fresh
    assert running == running_digest(state) == running_digest(held)
    assert state_digest(held) == state_digest(state) == patch.target_digest


def test_a_wrong_base_and_a_wrong_target_are_refused_before_anything_is_written():
    base = {"w": torch.arange(8.0)}
    patch = diff(base, {"w": torch.arange(8.0) + (torch.arange(8) == 3)})
    frame = encode(patch, base)
    other = running_digest({"w": torch.ones(8)})
    for read in (lambda: decode(frame, base, base_running=other), lambda: apply(base, patch, base_running=other)):
        with pytest.raises(FrameError, match="wrong base"):
            read()
    held = {"w": torch.arange(8.0)}
    held["w"][3] = 9.0  # written behind the digest's back, where the patch changes it
    with pytest.raises(FrameError, match="leads to running digest"):
        apply(held, patch, in_place=True, base_running=running_digest(base))
    assert held["w"][3] == 9.0


def test_an_anchor_names_its_running_digest():
    state = {"w": torch.arange(50.0)}
    digests = inspect(encode_anchor(state)).digests
    assert (digests.base, digests.base_running) == ("", "")
    assert digests.target_running == running_digest(state).hex
