"""The conditional entropy of a patch given what the receiver holds: the exponent of every base weight.

A weight's exponent fixes the spacing of its neighbours, and with Adam all updates are of about one size, so the
exponent tells most of whether a weight changes and by how many units (docs/patch_codec.md). An order-0 coder that
knows the exponents can come this close and no closer; a coder that knows more may go below.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from thinwire.patch import Patch, State
from thinwire.patch.bits import Bits, bits_of

_EXPONENT = {torch.bfloat16: (7, 8), torch.float16: (10, 5), torch.float32: (23, 8)}
_BLOCK = 1 << 21


@dataclass(frozen=True)
class Bound:
    """Bits a changed weight: to tell where, and to tell to what."""

    position: float
    value: float

    @property
    def total(self) -> float:
        """Both together."""
        return self.position + self.value


def _exponents(row: Bits, dtype: torch.dtype) -> npt.NDArray[np.intp]:
    shift, width = _EXPONENT[dtype]
    exponents: npt.NDArray[np.intp] = ((row >> shift) & ((1 << width) - 1)).astype(np.intp)
    return exponents


def _position_bits(weights: npt.NDArray[np.int64], changed: npt.NDArray[np.int64]) -> float:
    """Return the sum of n H2(c / n) over cells of ``weights`` n and ``changed`` c."""
    n, c = weights.astype(float), changed.astype(float)
    bits = 0.0
    for part in (c, n - c):
        some = part > 0
        bits -= float((part[some] * np.log2(part[some] / n[some])).sum())
    return bits


def _value_bits(cells: npt.NDArray[np.int64], steps: npt.NDArray[np.int64]) -> float:
    """Return the sum over cells of their size times the plug-in entropy of ``steps`` in them."""
    _, counts = np.unique((cells << 34) + steps + (1 << 33), return_counts=True)
    _, sizes = np.unique(cells, return_counts=True)
    return float((sizes * np.log2(sizes)).sum() - (counts * np.log2(counts)).sum())


def entropy_bound(base: State, patch: Patch) -> Bound:
    """Return the reference entropy of ``patch`` given ``base``, bits a changed weight.

    Positions: sum over (tensor, base exponent) of n H2(c/n), n weights and c changed in the cell. Values: sum over
    base exponents of c times the plug-in entropy of the difference of bit patterns in that exponent. Raises
    ValueError for a patch without changes, or with tensors carried whole or of a dtype other than bfloat16, float16
    and float32.
    """
    if patch.whole or not patch.tensors:
        raise ValueError("the bound is of changed weights: the patch has none, or carries tensors whole")
    positions, cells, steps = 0.0, [], []
    for part in patch.tensors:
        tensor = base[part.name]
        if tensor.dtype not in _EXPONENT:
            raise ValueError(f"tensor {part.name!r} of {tensor.dtype} has no exponent that the bound knows")
        row = bits_of(tensor)
        old = row[part.positions]
        weights = np.zeros(256, dtype=np.int64)
        for start in range(0, row.size, _BLOCK):
            weights += np.bincount(_exponents(row[start : start + _BLOCK], tensor.dtype), minlength=256)
        exponents = _exponents(old, tensor.dtype)
        positions += _position_bits(weights, np.bincount(exponents, minlength=256))
        cells.append(exponents.astype(np.int64))
        steps.append(part.bits.astype(np.int64) - old.astype(np.int64))
    return Bound(positions / patch.changed, _value_bits(np.concatenate(cells), np.concatenate(steps)) / patch.changed)
