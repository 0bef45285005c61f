"""The gate against numbers worked out by hand and against the count of representable values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.gate import visible


def test_edge_of_visibility_at_two() -> None:
    # BF16 values next to 2.0 are 2 - 2^-7 and 2 + 2^-6; half-way points 2 - 2^-8 and 2 + 2^-7, ties go to even (2.0).
    theta = torch.full((6,), 2.0)
    update = torch.tensor([0.0, 2**-8, 2**-8 + 2**-20, -(2**-7), -(2**-7) - 2**-20, 0.003])
    assert visible(theta, update).tolist() == [False, False, True, False, True, False]


def test_phase_of_a_master_weight_decides() -> None:
    # The same update is seen from a master next to its rounding boundary, and not from one in the cell's middle.
    theta = torch.tensor([1.0, 1.0 + 2**-8 + 2**-20])
    update = torch.full((2,), 1e-5)
    assert visible(theta, update).tolist() == [False, True]


def test_signed_zero_counts_and_a_kept_nan_does_not() -> None:
    theta = torch.tensor([-0.0, float("nan")])
    update = torch.tensor([-0.0, 1.0])
    assert visible(theta, update).tolist() == [True, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn])
def test_other_compute_dtypes(dtype: torch.dtype) -> None:
    theta = torch.tensor([1.0, 1.0])
    update = torch.tensor([0.0, 0.5])
    assert visible(theta, update, dtype).tolist() == [False, True]


def test_shapes_survive() -> None:
    theta = torch.ones(2, 3, 4).transpose(0, 2)
    assert visible(theta, torch.ones_like(theta)).shape == (4, 3, 2)
    assert visible(torch.tensor(1.0), torch.tensor(1.0)).shape == ()
    assert visible(torch.empty(0), torch.empty(0)).shape == (0,)


def test_refusals_name_the_fault() -> None:
    with pytest.raises(ValueError, match="share shape and dtype"):
        visible(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="share shape and dtype"):
        visible(torch.ones(2), torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(ValueError, match="no floating-point type"):
        visible(torch.ones(2), torch.ones(2), torch.int8)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**31 - 1), st.floats(1e-8, 1e-1))
def test_invisible_means_the_same_bytes_and_visible_means_others(seed: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    theta = torch.randn(257, generator=generator)
    update = scale * torch.randn(257, generator=generator)
    mask = visible(theta, update)
    sent = torch.where(mask, theta - update, theta).bfloat16()
    assert torch.equal(sent.view(torch.int16), (theta - update).bfloat16().view(torch.int16))
    # Below 1/512 of the weight's size a weight ON the grid never moves; above 1/256 it always does.
    grid = theta.bfloat16().float()
    on_grid = visible(grid, update)
    assert not on_grid[update.abs() < grid.abs() / 512].any()
    assert on_grid[update.abs() > grid.abs() / 256 * (1 + 1e-6)].all()
