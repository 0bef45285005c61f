"""Data-parallel replicas with the global loss: what small groups of threads gain without local learning.

Each replica runs the whole model on its rows of the global batch. Parameters and gradients lie in shared memory: the
replicas read one copy of the weights, write their gradients side by side, and meet. Then each replica averages the
gradients of its own share of the parameters, in the order of the replicas, steps that share, and all meet again (the
optimiser's work is divided, as in ZeRO, arXiv 1910.02054, stage 1). The mean over equal parts of the batch is the mean
over the batch, so that the schedule is ``global_backprop`` but for the order in which numbers are added.
"""

from multiprocessing.context import SpawnContext

import torch
from torch import Tensor, nn

from thinwire.local.engine import ProcessSchedule, Wiring, Worker
from thinwire.local.rings import Barrier, shared
from thinwire.local.schedule import State
from thinwire.local.stages import Batches, TrainingPlan, cut
from thinwire.models import ByteTransformer, next_byte_loss


class ReplicaWiring(Wiring):
    """The shared weights, a row of gradients for each replica, and the meeting point."""

    def __init__(self, plan: TrainingPlan, batches: Batches, context: SpawnContext) -> None:
        """Allocate them. Raises ValueError when the replicas do not divide the batch."""
        rows = batches(0).shape[0]
        if rows % plan.stages:
            raise ValueError(f"{plan.stages} replicas do not divide a batch of {rows} rows into equal parts")
        super().__init__(plan, batches, context)
        self.weights = shared(nn.utils.parameters_to_vector(plan.initial_model().parameters()).detach())
        self.gradients = shared(torch.zeros(plan.stages, self.weights.numel()))
        self.barrier = Barrier(context, plan.stages)

    def open_worker(self, rank: int) -> Worker:
        """Build replica ``rank``."""
        return ReplicaWorker(rank, self)


class ReplicaWorker(Worker):
    """One replica; owner of a share of the parameters."""

    def __init__(self, rank: int, wiring: ReplicaWiring) -> None:
        """Let the model's parameters and gradients be views of the shared memory."""
        self.rank, self.wiring = rank, wiring
        plan = wiring.plan
        self.rows = wiring.batches(0).shape[0] // plan.stages
        self.model: ByteTransformer = plan.initial_model()
        offset = 0
        self.places: dict[int, slice] = {}
        for parameter in self.model.parameters():
            place = slice(offset, offset + parameter.numel())
            offset = place.stop
            parameter.data = wiring.weights[place].view_as(parameter)
            parameter.grad = wiring.gradients[rank, place].view_as(parameter)
            self.places[id(parameter)] = place
        mine = cut(plan.model.blocks, plan.stages)[rank]
        self.own = {
            f"blocks.{i}.{name}": parameter for i in mine for name, parameter in self.model.blocks[i].named_parameters()
        }
        matrices = list(self.own.values())
        embedding = self.model.embedding if rank == 0 else None
        readout = self.model.readout.weight if rank == plan.stages - 1 else None
        if embedding is not None:
            self.own["embedding"] = embedding
        if readout is not None:
            self.own["readout.weight"] = readout
        self.optimiser = plan.optimiser(matrices, embedding=embedding, readout=readout)

    def step(self, step: int) -> float:
        """Forward and backward on this replica's rows, then the shared update."""
        w, halted = self.wiring, self.wiring.control.halted
        batch = w.batches(step)[self.rank * self.rows : (self.rank + 1) * self.rows]
        w.gradients[self.rank].zero_()
        for parameter in self.model.parameters():
            parameter.grad = w.gradients[self.rank, self.places[id(parameter)]].view_as(parameter)
        with w.plan.precision():
            loss = next_byte_loss(self.model(batch[:, :-1]), batch[:, 1:])
        loss.backward()  # type: ignore[no-untyped-call]
        w.barrier.wait(self.rank, halted)
        for parameter in self.own.values():
            parameter.grad = self._mean(self.places[id(parameter)]).view_as(parameter)
        self.optimiser.step(step)
        w.barrier.wait(self.rank, halted)
        return float(loss.detach())

    @torch.no_grad()
    def _mean(self, place: slice) -> Tensor:
        total = self.wiring.gradients[0, place].clone()
        for row in self.wiring.gradients[1:]:
            total.add_(row[place])
        return total.div_(len(self.wiring.gradients))

    def state(self) -> State:
        """The share of the parameters that this replica owns, and their moments."""
        state = {f"model.{name}": value.detach().clone() for name, value in self.own.items()}
        return state | {f"moments.{self.rank}.{name}": value for name, value in self.optimiser.state().items()}

    @torch.no_grad()
    def load(self, state: State, done: int) -> None:
        """Take its share over."""
        for name, parameter in self.own.items():
            parameter.copy_(state[f"model.{name}"])
        moments = {name: state[f"moments.{self.rank}.{name}"] for name in self.optimiser.state()}
        self.optimiser.load(moments, done)


class GlobalDDP(ProcessSchedule):
    """Replicas that train one model on parts of each batch."""

    wiring_type = ReplicaWiring

    def model_losses(self, losses: Tensor) -> list[float]:
        """Return the mean over the replicas' parts."""
        return [float(value) for value in losses.mean(0)]
