"""Muon for the matrices of the blocks, Adam for embedding and readout, and the schedule that both follow.

Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/) takes the momentum of a matrix and moves the
matrix by the nearest semi-orthogonal matrix to it, found with five Newton-Schulz steps. The update has the same size in
every direction, whatever the scale of the gradient; so a loss multiplied by a constant trains the blocks alike. Here
everything is FP32, and matrices of one shape are stacked and turned together: on a CPU, ninety small products cost more
than one batched one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)  # the coefficients of the quintic step in the Muon note


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Return float32 ``matrices`` [n, rows, cols] with singular values near 1 (between about 0.7 and 1.2).

    A zero matrix stays zero.
    """
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon:
    """Muon with Nesterov momentum over parameters whose last two axes are matrices.

    Parameters of one matrix shape, and those of its transpose, share one momentum buffer [n, rows, cols] with
    rows <= cols. ``step`` reads ``.grad`` of every parameter. Raises ValueError for a parameter with fewer than two
    axes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, momentum: float = 0.95, ns_steps: int = 5) -> None:
        """Group the parameters by shape and allocate the momentum."""
        self.momentum = momentum
        self.ns_steps = ns_steps
        self.groups: list[list[nn.Parameter]] = []
        by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for parameter in parameters:
            if parameter.dim() < 2:
                raise ValueError(f"Muon moves matrices; a parameter of shape {tuple(parameter.shape)} is none")
            rows, cols = parameter.shape[-2:]
            by_shape.setdefault((min(rows, cols), max(rows, cols)), []).append(parameter)
        self.groups = list(by_shape.values())
        self.buffers = [torch.zeros_like(self._stack(group)) for group in self.groups]

    @staticmethod
    def _stack(tensors: Sequence[Tensor]) -> Tensor:
        wide = [t.mT if t.shape[-2] > t.shape[-1] else t for t in tensors]
        return torch.cat([t.reshape(-1, *t.shape[-2:]) for t in wide])

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move every parameter by ``lr`` times max(1, rows / cols) ** 0.5 times its orthogonalised momentum."""
        for group, buffer in zip(self.groups, self.buffers, strict=True):
            gradient = self._stack([_gradient(p) for p in group])
            buffer.lerp_(gradient, 1.0 - self.momentum)
            updates = orthogonalise(gradient.lerp_(buffer, self.momentum), self.ns_steps)
            start = 0
            for parameter in group:
                rows, cols = parameter.shape[-2:]
                count = parameter.numel() // (rows * cols)
                update = updates[start : start + count]
                start += count
                update = update.mT if rows > cols else update
                parameter.add_(update.reshape(parameter.shape), alpha=-lr * max(1.0, rows / cols) ** 0.5)


class Adam:
    """Adam without weight decay: the bits of ``torch.optim.AdamW`` with ``weight_decay=0, foreach=False``.

    Written out because building torch's first optimiser imports its compiler: more than a second in every process.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], *, betas: tuple[float, float], eps: float = 1e-8) -> None:
        """Allocate both moments."""
        self.parameters = list(parameters)
        self.betas = betas
        self.eps = eps
        self.count = 0
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move every parameter by ``lr`` times its first moment over the root of its second, both bias-corrected."""
        self.count += 1
        first, second = self.betas
        scale = lr / (1.0 - first**self.count)
        root = (1.0 - second**self.count) ** 0.5
        for parameter, (mean, square) in zip(self.parameters, self.moments, strict=True):
            gradient = _gradient(parameter)
            mean.lerp_(gradient, 1.0 - first)
            square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
            parameter.addcdiv_(mean, square.sqrt().div_(root).add_(self.eps), value=-scale)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        raise ValueError(f"a parameter of shape {tuple(parameter.shape)} has no gradient; run backward before step")
    return parameter.grad


@dataclass(frozen=True)
class Recipe:
    """Learning rates, Adam's betas, and ``warmup`` in steps of the shared schedule."""

    muon_lr: float = 0.02
    adam_lr: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.95)
    warmup: int = 50


def schedule(step: int, steps: int, warmup: int) -> float:
    """Return the factor on all learning rates at 0-based ``step`` of ``steps``: warm-up, constant, linear decay.

    The rise takes ``warmup`` steps (at most a quarter of the run), the fall the second half; it would reach zero one
    step after the last.
    """
    rise = min(warmup, steps // 4)
    return min(1.0, (step + 1) / (rise + 1), (steps - step) / (steps - steps // 2))


class RecipeOptimiser:
    """Muon for ``matrices`` and Adam for ``tables`` (embedding, readout) under one schedule of ``steps`` steps.

    Either may be empty: a stage owns blocks and perhaps one table, the owner of the readout may hold no block.
    """

    def __init__(
        self, matrices: Iterable[nn.Parameter], tables: Iterable[nn.Parameter], *, recipe: Recipe, steps: int
    ) -> None:
        """Allocate the moments."""
        self.recipe = recipe
        self.steps = steps
        self.muon = Muon(matrices)
        self.adam = Adam(tables, betas=recipe.betas)
        self.parameters = [p for group in self.muon.groups for p in group] + self.adam.parameters

    def step(self, step: int) -> None:
        """Apply the gradients of 0-based ``step`` and clear them."""
        factor = schedule(step, self.steps, self.recipe.warmup)
        self.muon.step(self.recipe.muon_lr * factor)
        self.adam.step(self.recipe.adam_lr * factor)
        for parameter in self.parameters:
            parameter.grad = None
