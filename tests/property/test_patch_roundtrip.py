"""diff, encode, decode and apply bring every pair of versions over, whatever their dtypes, shapes and bits."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.patch import apply, decode, decode_anchor, diff, encode, encode_anchor, state_digest
from thinwire.patch.bits import DTYPES, bits_of, empty_bits, tied_groups
from thinwire.patch.frame import ENCODINGS, inspect

NAMES = ["", "a", "b", "layers.0.weight", "layers.10.weight", "ä漢 \n\"'"]
PUBLISHED = {torch.bfloat16, torch.float16, torch.float32}


@st.composite
def tensors(draw, dtypes=DTYPES, least_dims=0):
    dtype = draw(st.sampled_from(dtypes))
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=least_dims, max_size=3)))
    tensor, bits = empty_bits(dtype, shape)
    size = bits.size * bits.itemsize
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8)
    bits.view(np.uint8)[:] = raw & 1 if dtype == torch.bool else raw
    return draw(st.sampled_from([tensor, tensor.movedim(0, -1) if tensor.dim() else tensor]))


@st.composite
def versions(draw):
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    base = {name: draw(tensors()) for name in names}
    target = {}
    for name in names:
        way = draw(st.sampled_from(["same", "moved", "moved", "another", "removed"]))
        if way == "another":
            target[name] = draw(tensors())
        elif way != "removed":
            target[name] = base[name].clone()
        if way == "moved" and base[name].numel():
            bits = bits_of(target[name]).copy()
            flips = draw(st.lists(st.tuples(st.integers(0, bits.size - 1), st.integers(0, 255)), max_size=6))
            for place, flip in flips:
                bits[place] ^= type(bits[place])(flip & 1 if base[name].dtype == torch.bool else flip)
            moved, room = empty_bits(base[name].dtype, tuple(base[name].shape))
            room[:] = bits
            target[name] = moved
    if target and draw(st.booleans()):
        target["tied"] = target[draw(st.sampled_from(sorted(target)))]
    return base, target


def assert_same(state, expected):
    assert sorted(state) == sorted(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, name
        assert state[name].shape == tensor.shape, name
        np.testing.assert_array_equal(bits_of(state[name]), bits_of(tensor), err_msg=name)


@pytest.mark.parametrize("encoding", [word for word in ENCODINGS if word != "published"])
@given(versions())
@settings(max_examples=120)
def test_every_version_comes_over(encoding, pair):
    base, target = pair
    patch = diff(base, target)
    before = state_digest(base)
    frame = encode(patch, base, encoding)
    result = apply(base, decode(frame, base))
    assert_same(result, target)
    assert state_digest(result) == patch.target_digest
    assert state_digest(base) == before
    assert tied_groups(result) == tied_groups(target)
    assert inspect(frame).changed == patch.changed
    assert decode(frame, base).total == patch.total
    owned = {name: tensor.clone() for name, tensor in base.items()}
    assert_same(apply(owned, decode(frame, owned), in_place=True), target)


@given(st.data())
@settings(max_examples=80)
def test_the_published_layout_brings_over_what_it_can_carry(data):
    names = data.draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=3))
    base = {name: data.draw(tensors(sorted(PUBLISHED, key=str), least_dims=1)).contiguous() for name in names}
    target = {name: tensor.clone() for name, tensor in base.items()}
    for tensor in target.values():
        bits = bits_of(tensor)
        for place in data.draw(st.lists(st.integers(0, max(0, bits.size - 1)), max_size=5)) if bits.size else []:
            bits[place] += type(bits[place])(1)
    patch = diff(base, target)
    assert_same(apply(base, decode(encode(patch, base, "published"), base)), target)


@given(versions(), st.booleans())
@settings(max_examples=80)
def test_every_anchor_comes_over(pair, compress):
    state, _ = pair
    if state:
        state["tied"] = state[min(state)]
    frame = encode_anchor(state, compress=compress)
    back = decode_anchor(frame)
    assert_same(back, state)
    assert list(back) == sorted(state)
    assert tied_groups(back) == tied_groups(state)
    assert inspect(frame).target_digest == state_digest(state)
