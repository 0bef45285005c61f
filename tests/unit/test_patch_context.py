"""Context coding: buckets, segments, gaps by bucket, and the model that both ends share."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.patch import apply, decode, diff, encode, segments, state_digest
from thinwire.patch.bits import DTYPES, bits_of
from thinwire.patch.frame import inspect, moves
from thinwire.patch.model import grouped
from thinwire.patch.segments import END, Piece, bucket_rule, cut_segments


def bf16(patterns):
    return torch.from_numpy(np.array(patterns, dtype=np.uint16).view(np.int16)).view(torch.bfloat16)


@pytest.mark.parametrize(
    ("dtype", "value", "bucket"),
    [
        (torch.bfloat16, 1.0, 127),
        (torch.bfloat16, -0.75, 126),
        (torch.float32, 2.0, 128),
        (torch.float16, 1.0, 15),
        (torch.float64, 1.0, 1023 >> 3),
        (torch.float8_e4m3fn, 1.0, 7),
        (torch.float8_e5m2, -2.0, 16),
        (torch.int32, 77, 0),
        (torch.bool, 1, 0),
    ],
)
def test_the_bucket_of_an_element_is_its_exponent(dtype, value, bucket):
    shift, mask = bucket_rule(dtype)
    row = bits_of(torch.tensor([value]).to(dtype))
    assert (int(row[0]) >> shift) & mask == bucket


def test_segments_go_by_dtype_and_name_and_cut_large_tensors(monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT", 100)
    found = cut_segments([("b", torch.bfloat16, 130), ("a", torch.float32, 5), ("c", torch.bfloat16, 90)])
    assert [(segment.dtype, segment.pieces) for segment in found] == [
        (torch.bfloat16, (Piece("b", 0, 100),)),
        (torch.bfloat16, (Piece("b", 100, 130), Piece("c", 0, 70))),
        (torch.bfloat16, (Piece("c", 70, 90),)),
        (torch.float32, (Piece("a", 0, 5),)),
    ]
    assert [segment.size for segment in found] == [100, 100, 20, 5]


def test_the_model_counts_what_was_worked_out_by_hand():
    # exponents 127 127 128 127 128 127; changes at 1 (bucket 127, one before it), 4 (128, one) and 5 (127, one)
    base = {"w": bf16([0x3F80, 0x3F81, 0x4000, 0x3F82, 0x4001, 0x3F83])}
    target = {"w": bf16([0x3F80, 0x3F82, 0x4000, 0x3F82, 0x4000, 0x3F86])}  # moves +1, -1, +3
    frame = encode(diff(base, target), base, "context")
    (model,) = inspect(frame).header.models
    assert model.active == (127, 128)
    gaps = model.gap_counts.sum(axis=0)
    assert {int(token): int(gaps[token]) for token in np.flatnonzero(gaps)} == {1: 3, END: 2}
    moves = model.move_counts.sum(axis=0)  # zigzag less one: +1 -> 1, -1 -> 0, +3 -> 5
    assert {int(token): int(moves[token]) for token in np.flatnonzero(moves)} == {0: 1, 1: 1, 5: 1}
    assert state_digest(apply(base, decode(frame, base))) == state_digest(target)


def test_rows_with_one_law_share_a_table_and_others_do_not():
    rows = np.zeros((4, 256), dtype=np.int64)
    rows[0, :4] = rows[1, :4] = [8000, 4000, 2000, 1000]
    rows[2, 100:104] = rows[3, 100:104] = [1000, 2000, 4000, 8000]
    sizes, tables = grouped(rows)
    assert sizes == (2, 2)
    np.testing.assert_array_equal(tables, [rows[0] + rows[1], rows[2] + rows[3]])


@pytest.mark.parametrize("segment", [64, 1000])
def test_changes_survive_any_cut_into_segments(monkeypatch, segment):
    for module in ("segments", "header"):
        monkeypatch.setattr(f"thinwire.patch.{module}.SEGMENT", segment)
    rng = np.random.default_rng(3)
    base = {name: bf16(rng.integers(0, 1 << 16, size)) for name, size in (("a", 500), ("b", 1), ("c", 2300))}
    target = {name: tensor.clone() for name, tensor in base.items()}
    for tensor in target.values():
        row = bits_of(tensor)
        row[rng.random(row.size) < 0.3] ^= np.uint16(0x8181)
    patch = diff(base, target)
    for threads in (1, 2):
        frame = encode(patch, base, "context", threads=threads)
        assert state_digest(apply(base, decode(frame, base, threads=threads))) == patch.target_digest


@given(st.data())
@settings(max_examples=150)
def test_any_changes_of_any_dtype_come_back(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    size = data.draw(st.integers(1, 60))
    top = 2 if dtype == torch.bool else 256
    width = dtype.itemsize
    raw = data.draw(st.lists(st.integers(0, top - 1), min_size=2 * size * width, max_size=2 * size * width))
    old, fresh = (
        torch.tensor(part, dtype=torch.uint8).view(dtype) for part in (raw[: size * width], raw[size * width :])
    )
    base, target = {"w": old}, {"w": fresh}
    result = apply(base, decode(encode(diff(base, target), base, "context"), base))
    np.testing.assert_array_equal(bits_of(result["w"]), bits_of(fresh))


def stepped():
    """Return two versions whose moves are 1, 1, 2, 3, 4, 5, 8, 9, 300 and -70000 units in the last place."""
    base = {"w": torch.full((40,), 1.0), "n": bf16([0x4000] * 4)}
    target = {name: tensor.clone() for name, tensor in base.items()}
    steps = np.array([1, -1, 2, -3, 4, 5, -8, 9, 300, -70000], dtype=np.int32)
    bits_of(target["w"])[::4] += steps.view(np.uint32)
    bits_of(target["n"])[2] += np.uint16(1)
    return base, target


@pytest.mark.parametrize("encoding", ["relative", "context"])
def test_a_frame_tells_how_far_its_weights_move(encoding):
    base, target = stepped()
    frame = encode(diff(base, target), base, encoding)
    assert moves(frame) == {1: 3, 2: 1, 4: 2, 8: 2, 16: 1, 512: 1, 1 << 17: 1}


@pytest.mark.parametrize("encoding", ["absolute", "dense"])
def test_a_frame_of_bits_does_not_tell(encoding):
    base, target = stepped()
    assert moves(encode(diff(base, target), base, encoding)) is None
