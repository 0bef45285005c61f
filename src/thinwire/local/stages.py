"""Stages: consecutive blocks that train on their own loss, cut off from each other.

A stage receives hidden states as plain numbers, refines them with its blocks, and asks the shared readout for its own
prediction of the next byte. The gradient of that loss crosses the blocks of the stage and stops: the horizon is the
stage. What it hands to the next stage is detached, so a later loss can never reach an earlier block.

This is our reading of readout-gradient consensus: decoupled greedy learning (arXiv 1901.08164) whose auxiliary heads
are one shared readout. Only a lay summary of the method is public.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that torch's documentation uses)

from thinwire.models import ByteTransformer, ByteTransformerConfig, Readout, next_byte_loss
from thinwire.muon import Recipe, RecipeOptimiser

Batches = Callable[[int], Tensor]
"""Batch of a 0-based step: integers [batch, length + 1]; the same step gives the same bytes. Picklable."""


@dataclass(frozen=True)
class TrainingPlan:
    """What all schedules share, so that arms differ in the schedule alone.

    ``steps`` is the length of the learning-rate schedule, ``seed`` draws the initial weights, ``threads`` is the count
    of one process, ``staleness`` (asynchronous only) bounds the readout updates that a stage's snapshot may lack.
    Raises ValueError for numbers outside their limits.
    """

    model: ByteTransformerConfig
    steps: int
    seed: int
    stages: int = 4
    threads: int = 1
    staleness: int = 4
    recipe: Recipe = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        """Check the numbers before processes start."""
        if not 1 <= self.stages <= self.model.blocks:
            raise ValueError(f"{self.model.blocks} blocks make 1 to {self.model.blocks} stages, not {self.stages}")
        if self.steps < 1 or self.threads < 1:
            raise ValueError(f"steps ({self.steps}) and threads ({self.threads}) start at 1")
        if not 0 <= self.staleness <= 4096:
            raise ValueError(f"staleness must be between 0 and 4096 readout updates, not {self.staleness}")

    def initial_model(self) -> ByteTransformer:
        """Return the model at step 0; every process that asks gets the same bits."""
        return ByteTransformer(self.model, generator=torch.Generator().manual_seed(self.seed))


def cut(blocks: int, stages: int) -> list[range]:
    """Split ``blocks`` into consecutive ranges of equal length; a remainder lengthens the last stages by one each."""
    bounds = [blocks * k // stages for k in range(stages + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


class Stage(nn.Module):
    """Blocks ``span`` of ``model``, and its embedding when they are the first; shares the parameters, copies none."""

    def __init__(self, model: ByteTransformer, span: range) -> None:
        """Take the blocks of ``span``."""
        super().__init__()
        self.span = span
        self.blocks = nn.ModuleList(model.blocks[i] for i in span)
        self.embedding = model.embedding if span.start == 0 else None

    def forward(self, inputs: Tensor) -> Tensor:
        """Return hidden states [batch, length, width] for byte values (first stage) or hidden states (the others)."""
        hidden = inputs if self.embedding is None else F.embedding(inputs, self.embedding)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden

    def optimiser(self, plan: TrainingPlan, *tables: nn.Parameter) -> RecipeOptimiser:
        """Return the optimiser of the stage's own parameters, and of ``tables`` that it owns besides."""
        own = [] if self.embedding is None else [self.embedding]
        return RecipeOptimiser(self.blocks.parameters(), [*own, *tables], recipe=plan.recipe, steps=plan.steps)


def local_backward(
    stage: Stage,
    readout: Readout,
    inputs: Tensor,
    targets: Tensor,
    *,
    ship: Callable[[Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one stage forward and its own loss backward; return its detached hidden states and its loss in nats.

    Gradients are added to the stage's parameters and to ``readout.weight``. ``inputs`` must be detached. ``ship`` gets
    the detached hidden states before the loss is computed, so that the next stage can start: no backward locking.
    Raises ValueError when ``inputs`` carries a graph.
    """
    if inputs.requires_grad:
        raise ValueError("a stage's inputs must be detached: its gradient would cross into the stage before it")
    hidden = stage(inputs)
    detached = hidden.detach()
    if ship is not None:
        ship(detached)
    loss = next_byte_loss(readout(hidden), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return detached, loss.detach()
