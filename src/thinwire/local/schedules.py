"""Schedules: in which order, and where, the same model takes the same steps. One interface for all of them.

| name | gradient | readout | where |
|---|---|---|---|
| ``global_backprop`` | crosses all blocks | plain step | this process |
| ``local_independent`` | stops at the stage | a copy a stage; the final one is the model's | this process |
| ``rgc_sync`` | stops at the stage | mean of the stages' gradients, after every batch | this process |
| ``rgc_async`` | stops at the stage | the same mean, read through snapshots of bounded age | a process a stage |

All share initial weights, batches, optimisers and their schedule, so that a difference in quality is the schedule's.
"""

import copy
from abc import ABC, abstractmethod

from torch import Tensor

from thinwire.local.consensus import mean_gradient
from thinwire.local.engine import StageEngine
from thinwire.local.stages import Batches, Stage, TrainingPlan, cut, local_backward
from thinwire.models import ByteTransformer, Readout, next_byte_loss
from thinwire.muon import RecipeOptimiser
from thinwire.spawn import set_threads


class Schedule(ABC):
    """A training run that advances by steps; use as a context manager."""

    plan: TrainingPlan
    done: int = 0

    @abstractmethod
    def advance(self, steps: int) -> list[float]:
        """Train ``steps`` more batches; return the loss of each in nats. Raises ValueError beyond the plan."""

    @abstractmethod
    def model(self) -> ByteTransformer:
        """Return the model as it stands."""

    @abstractmethod
    def ledger(self) -> Tensor | None:
        """Readout version read and version applied to, int64 [stages, steps, 2]; None where they never differ."""

    def close(self) -> None:  # noqa: B027 (a schedule in one process has nothing to end)
        """End whatever processes the schedule started."""

    def __enter__(self) -> "Schedule":
        """Return the schedule itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the schedule."""
        self.close()


class _InProcess(Schedule):
    """A schedule in the calling process, with the plan's threads."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        self.plan = plan
        self.batches = batches
        self.whole = plan.initial_model()

    def advance(self, steps: int) -> list[float]:
        if not 0 < steps <= self.plan.steps - self.done:
            raise ValueError(f"the plan has {self.plan.steps} steps, {self.done} are done: {steps} more do not fit")
        set_threads(self.plan.threads)
        losses = []
        for step in range(self.done, self.done + steps):
            batch = self.batches(step)
            losses.append(float(self.step(step, batch[:, :-1], batch[:, 1:])))
            self.done = step + 1
        return losses

    @abstractmethod
    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Train one batch and return the model's loss in nats."""

    def model(self) -> ByteTransformer:
        return self.whole

    def ledger(self) -> Tensor | None:
        return None


class GlobalBackprop(_InProcess):
    """Plain training: one loss, whose gradient crosses all blocks."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Build the model and its optimiser."""
        super().__init__(plan, batches)
        tables = [self.whole.embedding, self.whole.readout.weight]
        self.optimiser = RecipeOptimiser(self.whole.blocks.parameters(), tables, recipe=plan.recipe, steps=plan.steps)

    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward, backward, step."""
        loss = next_byte_loss(self.whole(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step(step)
        return loss.detach()


class RGCSync(_InProcess):
    """Stages one after the other; after each batch the mean of their gradients moves the one readout."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Cut the model into the plan's stages."""
        super().__init__(plan, batches)
        self.stages = [Stage(self.whole, span) for span in cut(plan.model.blocks, plan.stages)]
        self.optimisers = [stage.optimiser(plan) for stage in self.stages]
        self.owner = RecipeOptimiser([], [self.whole.readout.weight], recipe=plan.recipe, steps=plan.steps)

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill every parameter's gradient and return the final stage's loss in nats."""
        weight = self.whole.readout.weight
        notes = []
        hidden, loss = inputs, inputs
        for stage in self.stages:
            hidden, loss = local_backward(stage, self.whole.readout, hidden, targets)
            assert weight.grad is not None
            notes.append(weight.grad)
            weight.grad = None
        weight.grad = mean_gradient(notes)
        return loss

    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """All stages forward and backward, then all optimisers."""
        loss = self.gradients(inputs, targets)
        for optimiser in self.optimisers:
            optimiser.step(step)
        self.owner.step(step)
        return loss


class LocalIndependent(_InProcess):
    """Stages that share nothing but hidden states: each trains a readout of its own."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Cut the model; all stages but the last get a copy of the readout."""
        super().__init__(plan, batches)
        self.stages = [Stage(self.whole, span) for span in cut(plan.model.blocks, plan.stages)]
        self.readouts: list[Readout] = [copy.deepcopy(self.whole.readout) for _ in self.stages[:-1]]
        self.readouts.append(self.whole.readout)
        self.optimisers = [
            stage.optimiser(plan, readout.weight) for stage, readout in zip(self.stages, self.readouts, strict=True)
        ]

    def step(self, step: int, inputs: Tensor, targets: Tensor) -> Tensor:
        """All stages forward and backward, then all optimisers."""
        hidden, loss = inputs, inputs
        for stage, readout in zip(self.stages, self.readouts, strict=True):
            hidden, loss = local_backward(stage, readout, hidden, targets)
        for optimiser in self.optimisers:
            optimiser.step(step)
        return loss


class RGCAsync(Schedule):
    """Stages in processes of their own: see ``thinwire.local.engine``."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Start the stage processes."""
        self.plan = plan
        self.engine = StageEngine(plan, batches)

    def advance(self, steps: int) -> list[float]:
        """Train ``steps`` more batches through all stages."""
        losses = self.engine.advance(steps)
        self.done = self.engine.done
        return losses

    def model(self) -> ByteTransformer:
        """Gather the model from the stages."""
        return self.engine.model()

    def ledger(self) -> Tensor | None:
        """Readout versions read and applied to."""
        return self.engine.ledger

    def close(self) -> None:
        """End the stage processes."""
        self.engine.close()


SCHEDULES: dict[str, type[_InProcess] | type[RGCAsync]] = {
    "global_backprop": GlobalBackprop,
    "local_independent": LocalIndependent,
    "rgc_sync": RGCSync,
    "rgc_async": RGCAsync,
}


def open_schedule(name: str, plan: TrainingPlan, batches: Batches) -> Schedule:
    """Start the schedule of that name. Raises ValueError for an unknown one.

    ``global_backprop`` ignores the plan's stages; only ``rgc_async`` reads its staleness.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    return SCHEDULES[name](plan, batches)
