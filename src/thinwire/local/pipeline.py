"""A pipeline of stage processes with the global loss: one-forward-one-backward, flushed after every batch.

The batch is cut into micro-batches that follow each other through the stages. Stage k runs up to K - k of them forward
before the first gradient comes back, then one backward for every forward (1F1B of PipeDream, arXiv 1806.03377, with
the flush of arXiv 2006.09503), so that weights never change between a micro-batch's forward and backward pass. After
the last one, every stage steps its own optimiser. The gradient is that of ``global_backprop`` but for the order in
which numbers are added; what it costs is the idle time while the pipeline fills and empties in every batch.
"""

from collections import deque
from multiprocessing.context import SpawnContext

import torch
from torch import Tensor

from thinwire.local.engine import ProcessSchedule, Wiring, Worker
from thinwire.local.rings import Ring
from thinwire.local.schedule import State
from thinwire.local.stages import Batches, Stage, TrainingPlan
from thinwire.models import next_byte_loss


class PipelineWiring(Wiring):
    """A ring forward and a ring backward between any two neighbours."""

    def __init__(self, plan: TrainingPlan, batches: Batches, context: SpawnContext) -> None:
        """Allocate the rings. Raises ValueError when the micro-batches do not divide the batch, or for an overlap."""
        rows, window = batches(0).shape
        if rows % plan.microbatches:
            raise ValueError(f"{plan.microbatches} micro-batches do not divide a batch of {rows} rows into equal parts")
        if plan.overlap or plan.private:
            raise ValueError("overlap and private blocks belong to local losses: a global pipeline has neither")
        super().__init__(plan, batches, context)
        shape = (rows // plan.microbatches, window - 1, plan.model.width)
        slots = plan.stages + 1
        links = range(plan.stages - 1)
        self.forward = [Ring(context, slots, {"hidden": (shape, torch.float32)}, waits=True) for _ in links]
        self.backward = [Ring(context, slots, {"gradient": (shape, torch.float32)}, waits=True) for _ in links]

    def restart(self, state: State, done: int) -> None:
        """Let the rings expect the first micro-batch of the next step."""
        for ring in (*self.forward, *self.backward):
            ring.restart(done * self.plan.microbatches)

    def open_worker(self, rank: int) -> Worker:
        """Build stage ``rank``."""
        return PipelineWorker(rank, self)


class PipelineWorker(Worker):
    """One stage of the pipeline."""

    def __init__(self, rank: int, wiring: PipelineWiring) -> None:
        """Keep the stage's own blocks; the last one also the readout."""
        self.rank, self.wiring, self.plan = rank, wiring, wiring.plan
        self.halted = wiring.control.halted
        self.last = rank == self.plan.stages - 1
        model, stages = self.plan.initial_stages()
        self.stage: Stage = stages[rank]
        self.readout = model.readout if self.last else None
        self.optimiser = self.stage.optimiser(self.plan, self.readout.weight if self.readout else None)

    def step(self, step: int) -> float:
        """All micro-batches of one batch, then the optimiser."""
        count = self.plan.microbatches
        rows = self.wiring.batches(step).chunk(count) if self.rank == 0 or self.last else None
        first = step * count
        under_way: deque[tuple[Tensor, Tensor]] = deque()
        total = torch.zeros(())
        ahead = self.plan.stages - self.rank
        for micro in range(count + ahead - 1):
            if micro < count:
                with self.plan.precision():
                    inputs, out = self._forward(first + micro, None if rows is None else rows[micro])
                total += out.detach() if self.last else 0.0
                under_way.append((inputs, out))
            if micro >= ahead - 1:
                self._backward(first + micro - ahead + 1, *under_way.popleft())
        self.optimiser.step(step)
        return float(total)

    def _forward(self, number: int, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return what came in and what goes out: hidden states, or the micro-batch's share of the loss."""
        w = self.wiring
        if self.rank == 0:
            assert rows is not None
            inputs = rows[:, :-1]
        else:
            inputs = w.forward[self.rank - 1].take(number, self.halted)["hidden"].detach().requires_grad_()
        hidden, _ = self.stage(inputs)
        if self.readout is not None:
            assert rows is not None
            return inputs, next_byte_loss(self.readout(hidden), rows[:, 1:]) / self.plan.microbatches
        w.forward[self.rank].put(number, self.halted, hidden=hidden.detach())
        return inputs, hidden

    def _backward(self, number: int, inputs: Tensor, out: Tensor) -> None:
        """Run one micro-batch backward and hand its gradient to the stage before."""
        w = self.wiring
        if self.last:
            out.backward()  # type: ignore[no-untyped-call]
        else:
            out.backward(w.backward[self.rank].take(number, self.halted)["gradient"])  # type: ignore[no-untyped-call]
            w.backward[self.rank].release(number)
        if self.rank > 0:
            assert inputs.grad is not None
            w.forward[self.rank - 1].release(number)
            w.backward[self.rank - 1].put(number, self.halted, gradient=inputs.grad)

    def state(self) -> State:
        """This stage's blocks, embedding and readout where it has them, and moments."""
        state: State = self.stage.part_of_model()
        if self.readout is not None:
            state["model.readout.weight"] = self.readout.weight
        return state | {f"moments.{self.rank}.{name}": value for name, value in self.optimiser.state().items()}

    @torch.no_grad()
    def load(self, state: State, done: int) -> None:
        """Take over the stage's part."""
        for name, value in self.state().items():
            value.copy_(state[name])
        moments = {name: state[f"moments.{self.rank}.{name}"] for name in self.optimiser.state()}
        self.optimiser.load(moments, done)


class Global1F1B(ProcessSchedule):
    """Stage processes that train on the global loss."""

    wiring_type = PipelineWiring
