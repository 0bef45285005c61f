"""The loops under the patches against plain numpy: scan, gaps, differences, planes."""

import numpy as np
import pytest
import torch

from thinwire.patch import apply, diff, state_digest
from thinwire.patch import kernel as kernel_module
from thinwire.patch.bits import DTYPES, UNSIGNED, bits_of, copy_of, empty_bits, tied_groups
from thinwire.patch.compare import changed_elements
from thinwire.patch.positions import join_positions, split_positions
from thinwire.patch.values import cut_planes, join_differences, lay_planes, split_differences, tally_moves


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [0, 1, 7, 63, 64, 65, 1000, 300_001])
@pytest.mark.parametrize("share", [0.0, 0.003, 0.5, 1.0])
def test_scan_finds_what_numpy_finds(width, size, share):
    rng = np.random.default_rng(size * 8 + width)
    a = rng.integers(0, 256, size * width, dtype=np.uint8).view(UNSIGNED[width])
    b = a.copy()
    b[rng.random(size) < share] ^= UNSIGNED[width](1) << UNSIGNED[width](8 * width - 1)
    for threads in (1, 2):
        (found,) = changed_elements([(a, b, (3, 4))], threads)
        np.testing.assert_array_equal(found.positions, np.flatnonzero(a != b))
        np.testing.assert_array_equal(found.bits, b[a != b])
        assert found.positions.dtype == np.int64


def test_scan_crosses_spans_and_reads_unaligned_rows():
    raw = np.random.default_rng(0).integers(0, 256, (1 << 23) * 2 + 3, dtype=np.uint8)
    a = raw[1:-2].view(np.uint16)
    other = raw.copy()
    b = other[1:-2].view(np.uint16)
    expected = np.array([0, 5, (1 << 22) - 1, 1 << 22, (1 << 22) + 1, a.size - 1])
    b[expected] += np.uint16(1)
    found = changed_elements([(a, b, (0, 0)), (a, a.copy(), (0, 0)), (a[:9], b[:9], (0, 0))], 2)
    np.testing.assert_array_equal(found[0].positions, expected)
    assert found[1].positions.size == 0
    np.testing.assert_array_equal(found[2].positions, [0, 5])


def test_scan_refuses_unlike_rows():
    with pytest.raises(ValueError, match="element by element"):
        changed_elements([(np.zeros(3, np.uint16), np.zeros(4, np.uint16), (0, 0))], 1)


@pytest.mark.parametrize(
    "positions",
    [[], [0], [5], [0, 1, 2], [255, 256, 511, 512], [65279], [65280], [65281, 200_000, 1 << 40], [(1 << 60) - 1]],
)
def test_positions_return(positions):
    given = np.array(positions, dtype=np.int64)
    low, high, long = split_positions(given)
    back, at = join_positions(low, high, long, 0, 1 << 60)
    np.testing.assert_array_equal(back, given)
    assert at == long.size
    if positions:
        with pytest.raises(ValueError, match="lead beyond"):
            join_positions(low, high, long, 0, positions[-1])


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_differences_return_for_all_extremes(width):
    kind = UNSIGNED[width]
    edge = [0, 1, 2, 127, 128, 254, 255]
    top = [(1 << (8 * width)) - 1 - value for value in edge] + [1 << (8 * width - 1), (1 << (8 * width - 1)) - 1]
    values = np.array([value % (1 << (8 * width)) for value in edge + top], dtype=kind)
    old, fresh = (grid.ravel().copy() for grid in np.meshgrid(values, values))
    small, long = split_differences(old, fresh)
    back, at = join_differences(old, small, long, 0)
    np.testing.assert_array_equal(back, fresh)
    assert at == long.size


def test_small_moves_cost_one_byte():
    old = np.array([100, 100, 100, 100], dtype=np.uint16)
    small, long = split_differences(old, np.array([99, 101, 98, 102], dtype=np.uint16))
    assert small.tolist() == [1, 2, 3, 4]
    assert long.size == 0


def test_a_difference_wider_than_its_element_is_refused():
    with pytest.raises(ValueError, match="wider than its element"):
        join_differences(np.zeros(1, np.uint8), np.array([255], np.uint8), np.array([1], np.uint8), 0)
    with pytest.raises(ValueError, match="cut"):
        join_differences(np.zeros(1, np.uint16), np.array([255], np.uint8), np.array([128], np.uint8), 0)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("rotate", [False, True])
def test_planes_return_and_rotation_gathers_the_exponent(width, rotate):
    row = np.random.default_rng(width).integers(0, 256, 999 * width, dtype=np.uint8).view(UNSIGNED[width])
    planes = cut_planes(row, rotate)
    back = np.empty_like(row)
    lay_planes(planes, rotate, back)
    np.testing.assert_array_equal(back, row)
    if rotate and width == 2:
        np.testing.assert_array_equal(planes[1], (row >> 7) & 255)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
def test_bits_share_memory_with_every_dtype(dtype, shape):
    tensor, bits = empty_bits(dtype, shape)
    bits[:] = 1
    assert tensor.dtype == dtype
    assert tuple(tensor.shape) == shape
    assert bits.shape == (tensor.numel(),)
    assert bits.itemsize == tensor.element_size()
    np.testing.assert_array_equal(bits_of(tensor), np.ones(tensor.numel()))


def test_bits_of_views_come_in_row_major_order():
    matrix = torch.arange(12, dtype=torch.int32).reshape(3, 4)
    assert bits_of(matrix.T).tolist() == matrix.T.flatten().tolist()
    assert bits_of(matrix[:, ::2]).tolist() == [0, 2, 4, 6, 8, 10]
    assert bits_of(matrix[:, :1].expand(3, 4)).tolist() == [0] * 4 + [4] * 4 + [8] * 4
    conjugate = torch.tensor([1 + 2j], dtype=torch.complex64).conj()
    assert bits_of(conjugate).tolist() == bits_of(conjugate.resolve_conj().clone()).tolist()


def test_tied_groups_are_those_of_one_tensor_in_memory():
    weight = torch.ones(2, 3)
    state = {
        "b": weight,
        "a": weight.view(2, 3),
        "t": weight.T,
        "c": weight.clone(),
        "e": torch.empty(0),
        "f": torch.empty(0),
    }
    assert tied_groups(state) == (("a", "b"),)


def test_loops_compile_where_no_cache_can_be_written(monkeypatch):
    njit = kernel_module.njit

    def without_folder(cache=False, **options):
        def compiled(loop):
            if cache:
                raise RuntimeError(f"cannot cache function {loop.__name__!r}: no locator available")
            return njit(**options)(loop)

        return compiled

    monkeypatch.setattr(kernel_module, "njit", without_folder)
    assert kernel_module.kernel(lambda value: value + 1)(2) == 3


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.uint32, np.uint64])
@pytest.mark.parametrize("piece", [1, 7, 1000])
def test_moves_are_tallied_alike_however_the_streams_are_cut(kind, piece):
    generator = np.random.default_rng(0)
    moved = [1 << int(power) for power in generator.integers(0, 8 * np.dtype(kind).itemsize - 1, 200)]
    old = generator.integers(0, np.iinfo(kind).max, 200, dtype=kind, endpoint=True)
    small, long = split_differences(old, old + np.array(moved, dtype=kind))
    cut = [[stream[at : at + piece] for at in range(0, stream.size, piece)] for stream in (small, long)]
    assert tally_moves(*cut) == {move: moved.count(move) for move in sorted(set(moved))}
    if long.size:
        with pytest.raises(ValueError, match="cut or has bytes too many"):
            tally_moves([small], [long[:-1]])
    with pytest.raises(ValueError, match="cut or has bytes too many"):
        tally_moves([small], [long, np.array([5], dtype=np.uint8)])
    with pytest.raises(ValueError, match="wider than its element"):
        tally_moves([small], [np.full(11, 255, dtype=np.uint8)])


@pytest.mark.parametrize("view", ["whole", "part", "strided", "transposed", "expanded", "scalar"])
def test_no_byte_of_a_bool_is_lost(view):
    raw = torch.arange(256, dtype=torch.uint8).reshape(16, 16)
    views = {
        "whole": lambda t: t,
        "part": lambda t: t.view(-1)[3:],
        "strided": lambda t: t[1::2, ::3],
        "transposed": lambda t: t.t(),
        "expanded": lambda t: t[:, :1].expand(16, 5),
        "scalar": lambda t: t[3, 4],
    }
    wanted = views[view](raw).contiguous().view(-1).tolist()
    held = views[view](raw.view(torch.bool))
    assert bits_of(held).tolist() == wanted
    assert bits_of(copy_of(held)).tolist() == wanted
    assert copy_of(held).dtype == torch.bool
    base = {"w": held}
    target = {"w": torch.tensor([255 - byte for byte in wanted], dtype=torch.uint8).view(torch.bool).view(held.shape)}
    patch = diff(base, target)
    assert state_digest(apply(base, patch)) == state_digest(target)
