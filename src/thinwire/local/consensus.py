"""Readout-gradient consensus: what the owner of the shared readout makes of the stages' gradients.

Every stage sends the gradient of its own loss with respect to the shared readout. The owner (the final stage) takes
their mean and gives it to its optimiser. The sum runs in the order of the stages, whatever the order of arrival, so
that a faster schedule gives the same bits as a slower one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def mean_gradient(gradients: Sequence[Tensor]) -> Tensor:
    """Return the mean of ``gradients`` (one a stage, one shape), summed in their order.

    Raises ValueError when there is none or the shapes differ.
    """
    if not gradients:
        raise ValueError("a consensus needs the gradient of at least one stage")
    if len({gradient.shape for gradient in gradients}) > 1:
        raise ValueError(f"the stages' readout gradients differ in shape: {[tuple(g.shape) for g in gradients]}")
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total.add_(gradient)
    return total.div_(len(gradients))
