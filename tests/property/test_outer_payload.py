"""The sparse payload: lossless for every bit pattern, bounded in size, and never wrong about foreign bytes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.outer.payload import MAGIC, PayloadError, decode, encode, limit


@st.composite
def layouts(draw):
    sizes = draw(st.lists(st.integers(0, 2000), max_size=5))
    seed = draw(st.integers(0, 2**32 - 1))
    density = draw(st.sampled_from([0.0, 0.001, 0.03, 0.5, 1.0]))
    random = np.random.default_rng(seed)
    entries = []
    for size in sizes:
        positions = np.flatnonzero(random.random(size) < density)
        bits = random.integers(0, 2**32, len(positions), dtype=np.uint32)  # NaN payloads and signed zeros among them
        entries.append((torch.from_numpy(positions), torch.from_numpy(bits.view(np.float32))))
    return sizes, entries


def same(left, right):
    return all(
        torch.equal(p, q) and torch.equal(v.view(torch.int32), w.view(torch.int32))
        for (p, v), (q, w) in zip(left, right, strict=True)
    )


@given(layouts())
def test_a_payload_carries_every_bit_within_its_limit(layout):
    sizes, entries = layout
    data = encode(entries, sizes)
    payload = decode(data, sizes)
    assert len(data) <= limit(sizes)
    assert payload.sent == sum(len(positions) for positions, _ in entries)
    assert same(entries, list(payload))
    assert encode(entries, sizes) == data


@given(layouts(), st.randoms(use_true_random=False))
def test_damaged_bytes_are_refused_or_stay_inside_the_layout(layout, random):
    sizes, entries = layout
    data = bytearray(encode(entries, sizes))
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    try:
        payload = decode(bytes(data), sizes)
    except PayloadError:
        return
    for (positions, values), size in zip(payload, sizes, strict=True):
        assert len(positions) == len(values)
        assert ((positions >= 0) & (positions < size)).all()
        assert (positions.diff() > 0).all()


@given(layouts(), st.binary(min_size=1, max_size=200))
def test_cut_extended_and_foreign_bytes_are_refused(layout, noise):
    sizes, entries = layout
    data = encode(entries, sizes)
    for wrong in (data[:-1], data + noise, noise, data[: len(MAGIC)], b"XXXX" + data[4:]):
        with pytest.raises(PayloadError):
            decode(wrong, sizes)


def test_gaps_of_any_length_come_back():
    size = 3_000_000
    positions = torch.tensor([0, 1, 254, 255, 256, 510, 511, 512, 1020, 65_536, 65_791, 2_999_999])
    values = torch.arange(len(positions), dtype=torch.float32)
    assert same([(positions, values)], list(decode(encode([(positions, values)], [size]), [size])))


def test_another_layout_is_refused_by_name():
    data = encode([(torch.tensor([4]), torch.tensor([1.0]))], [5])
    with pytest.raises(PayloadError, match="layout here has 2 tensors of 5"):
        decode(data, [2, 3])


def test_positions_beyond_their_tensor_are_refused_on_both_sides():
    entries = [(torch.tensor([4]), torch.tensor([1.0])), (torch.tensor([], dtype=torch.int64), torch.tensor([]))]
    with pytest.raises(ValueError, match="tensor 0: positions must ascend from 0 to at most 3"):
        encode(entries, [4, 1])
    with pytest.raises(PayloadError, match="tensor 0: an entry lies beyond its 4 elements"):
        decode(encode(entries, [5, 1])[:], [4, 2])


def test_entries_that_do_not_ascend_are_refused():
    with pytest.raises(ValueError, match="must ascend"):
        encode([(torch.tensor([3, 3]), torch.tensor([1.0, 2.0]))], [5])


def test_the_limit_refuses_before_anything_is_read():
    with pytest.raises(PayloadError, match="this layout allows"):
        decode(bytes(limit([10]) + 1), [10])


def test_sparse_entries_of_small_updates_cost_less_than_raw_indices_and_values():
    random = torch.Generator().manual_seed(0)
    size = 1_000_000
    theta = torch.randn(size, generator=random) * 0.1
    update = theta - (theta - 2e-5 * torch.randn(size, generator=random))
    positions = (torch.rand(size, generator=random) < 0.03).nonzero().squeeze(1)
    data = encode([(positions, update[positions])], [size])
    assert len(data) < 4.0 * len(positions)  # int32 index and FP32 value are 8
