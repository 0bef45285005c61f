"""The compute-visible gate: which updates would change what the next forward pass reads.

A model that computes in BF16 reads ``cast(theta)``, not ``theta``. An update moves the forward pass only where it
moves that cast value; elsewhere it is invisible until more of it has accumulated. This is Eq. 1 of arXiv 2602.03839
(v2),

    G_D(theta, s) = { i : cast_D(theta_i) != cast_D(theta_i - s_i) },

with ``s`` the amount to be subtracted. "Not equal" means other bits: a flip from +0 to -0 is visible and a NaN that
keeps its payload is not, because what is sent must reproduce the receiver's bytes.
"""

import torch

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def visible(theta: torch.Tensor, update: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Return the boolean mask, shaped as ``theta``, of the entries at which ``theta - update`` casts to other bits.

    ``theta`` and ``update`` share shape, dtype and device; the subtraction runs in their dtype (FP32 for master
    weights). ``dtype`` is the compute dtype D. Source: Eq. 1 of arXiv 2602.03839 (v2). Raises ValueError when shape
    or dtype differ or when ``dtype`` is not a floating-point type.
    """
    if theta.shape != update.shape or theta.dtype != update.dtype:
        raise ValueError(
            f"gate: theta is {tuple(theta.shape)} {theta.dtype} and update is {tuple(update.shape)} {update.dtype}; "
            "they must share shape and dtype"
        )
    if not dtype.is_floating_point:
        raise ValueError(f"gate: {dtype} is no floating-point type; name the dtype that the forward pass computes in")
    bits = _INTEGERS[dtype.itemsize]
    before = theta.to(dtype).contiguous().view(bits)
    after = (theta - update).to(dtype).contiguous().view(bits)
    return before != after
