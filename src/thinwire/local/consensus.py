"""Readout-gradient consensus: what the owner of the shared readout makes of the stages' gradients.

Every stage sends the gradient of its own loss with respect to the shared readout. The owner (the final stage) takes
their weighted mean and gives it to its optimiser. The sum runs in the order of the stages, whatever the order of
arrival, so that a faster schedule gives the same bits as a slower one.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Consensus = Literal["mean", "depth", "final"]
"""Plain mean; weights that grow in proportion to the stage's place, 1 to K; the final stage's gradient alone."""


def shares(consensus: Consensus, stages: int) -> list[float]:
    """Return the weight of each stage's gradient; they sum to 1. Raises ValueError for an unknown ``consensus``."""
    if consensus == "mean":
        return [1.0 / stages] * stages
    if consensus == "depth":
        return [2.0 * place / (stages * (stages + 1)) for place in range(1, stages + 1)]
    if consensus == "final":
        return [0.0] * (stages - 1) + [1.0]
    raise ValueError(f"no consensus {consensus!r}; there are mean, depth and final")


@torch.no_grad()
def combine(gradients: Sequence[Tensor], consensus: Consensus = "mean") -> Tensor:
    """Return the weighted mean of ``gradients`` (one a stage, one shape), summed in their order.

    Raises ValueError when there is none or the shapes differ.
    """
    if not gradients:
        raise ValueError("a consensus needs the gradient of at least one stage")
    if len({gradient.shape for gradient in gradients}) > 1:
        raise ValueError(f"the stages' readout gradients differ in shape: {[tuple(g.shape) for g in gradients]}")
    if consensus == "mean":
        total = gradients[0].clone()
        for gradient in gradients[1:]:
            total.add_(gradient)
        return total.div_(len(gradients))
    total = torch.zeros_like(gradients[0])
    for share, gradient in zip(shares(consensus, len(gradients)), gradients, strict=True):
        if share:
            total.add_(gradient, alpha=share)
    return total
