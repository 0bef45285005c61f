"""The one interface of all schedules, and those that run in the calling process.

A schedule is an order, and a place, in which the same model takes the same steps. All share initial weights, batches,
optimisers and learning rates, so that a difference in quality is the schedule's.
"""

import copy
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from thinwire.local.consensus import combine
from thinwire.local.stages import Batches, PlanOptimiser, TrainingPlan, local_backward
from thinwire.models import ByteTransformer, Readout, next_byte_loss
from thinwire.spawn import set_threads

State = dict[str, Tensor]
"""Every number that the next step depends on, by name."""


class Schedule(ABC):
    """A training run that advances by steps; use as a context manager."""

    plan: TrainingPlan
    done: int = 0

    def advance(self, steps: int) -> list[float]:
        """Train ``steps`` more batches; return the loss of each in nats. Raises ValueError beyond the plan."""
        if not 0 < steps <= self.plan.steps - self.done:
            raise ValueError(f"the plan has {self.plan.steps} steps, {self.done} are done: {steps} more do not fit")
        return self._advance(steps)

    @abstractmethod
    def _advance(self, steps: int) -> list[float]:
        """Train ``steps`` batches, which fit, and count them in ``done``."""

    @abstractmethod
    def model(self) -> ByteTransformer:
        """Return the model as it stands."""

    @abstractmethod
    def state(self) -> State:
        """Return the state after the steps that are done; ``load`` in a schedule of the same plan goes on from it."""

    @abstractmethod
    def load(self, state: State, done: int) -> None:
        """Take over the ``state`` of a schedule of the same plan after ``done`` steps."""

    def ledger(self) -> Tensor | None:
        """Readout version read and version applied to, int64 [stages, steps, 2]; None where they never differ."""
        return None

    def close(self) -> None:  # noqa: B027 (a schedule in one process has nothing to end)
        """End whatever processes the schedule started."""

    def __enter__(self) -> "Schedule":
        """Return the schedule itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the schedule."""
        self.close()


class InProcess(Schedule):
    """A schedule in the calling process, with the plan's threads."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Build the model and its stages."""
        self.plan = plan
        self.batches = batches
        self.whole, self.stages = plan.initial_stages()
        self.readouts: list[Readout] = []
        """Readouts besides the model's own."""
        self.optimisers: list[PlanOptimiser] = []

    def _advance(self, steps: int) -> list[float]:
        set_threads(self.plan.threads)
        losses = []
        for step in range(self.done, self.done + steps):
            batch = self.batches(step)
            losses.append(float(self.gradients(batch[:, :-1], batch[:, 1:])))
            for optimiser in self.optimisers:
                optimiser.step(step)
            self.done = step + 1
        return losses

    @abstractmethod
    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Fill every parameter's gradient and return the model's loss in nats."""

    def model(self) -> ByteTransformer:
        """Return the model that is trained, no copy."""
        return self.whole

    def state(self) -> State:
        """Parameters of model, private blocks and further readouts, and all moments."""
        state: State = {f"model.{name}": value for name, value in self.whole.state_dict().items()}
        for rank, stage in enumerate(self.stages):
            state |= {f"private.{rank}.{name}": value for name, value in stage.private.state_dict().items()}
        for rank, readout in enumerate(self.readouts):
            state[f"readout.{rank}"] = readout.weight.detach()
        for place, optimiser in enumerate(self.optimisers):
            state |= {f"moments.{place}.{name}": value for name, value in optimiser.state().items()}
        return state

    @torch.no_grad()
    def load(self, state: State, done: int) -> None:
        """Take the state over."""
        for name, value in self.state().items():
            value.copy_(state[name])
        for place, optimiser in enumerate(self.optimisers):
            optimiser.load({name: state[f"moments.{place}.{name}"] for name in optimiser.state()}, done)
        self.done = done


class GlobalBackprop(InProcess):
    """Plain training: one loss, whose gradient crosses all blocks."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Build the model and its optimiser."""
        super().__init__(plan, batches)
        self.stages = []
        blocks = self.whole.blocks.parameters()
        self.optimisers = [
            plan.optimiser(blocks, embedding=self.whole.embedding, readout=self.whole.readout.weight),
        ]

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward, backward."""
        with self.plan.precision():
            loss = next_byte_loss(self.whole(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class RGCSync(InProcess):
    """Stages one after the other; after each batch the consensus of their gradients moves the one readout."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Cut the model into the plan's stages."""
        super().__init__(plan, batches)
        self.optimisers = [stage.optimiser(plan) for stage in self.stages]
        self.optimisers.append(plan.optimiser([], readout=self.whole.readout.weight))

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
        weight.grad = combine(notes, self.plan.consensus)
        return loss


class LocalIndependent(InProcess):
    """Stages that share nothing but hidden states: each trains a readout of its own."""

    def __init__(self, plan: TrainingPlan, batches: Batches) -> None:
        """Cut the model; all stages but the last get a copy of the readout."""
        super().__init__(plan, batches)
        self.readouts = [copy.deepcopy(self.whole.readout) for _ in self.stages[:-1]]
        self.optimisers = [
            stage.optimiser(plan, readout.weight)
            for stage, readout in zip(self.stages, [*self.readouts, self.whole.readout], strict=True)
        ]

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Each stage's own loss, forward and backward."""
        hidden, loss = inputs, inputs
        for stage, readout in zip(self.stages, [*self.readouts, self.whole.readout], strict=True):
            hidden, loss = local_backward(stage, readout, hidden, targets)
        return loss
