"""Asynchronous stages: a pipeline of processes without backward locking.

Stage k takes the hidden states of batch t from the ring before it, refines them, hands the detached result on at once,
and then runs its own loss backward while the next stage is already at work. Every stage sees every batch in order, so
its blocks have taken exactly t steps when they meet batch t: hidden states are never stale. The one thing that may be
old is what a stage copies from another process:

- **The readout** (``rgc_async``). A stage asks for it after its forward pass, at the last moment, and takes the newest
  version, but none below t - staleness (version v = after v updates). It ships its gradient to the owner, the final
  stage, which turns version t into t + 1 when the gradients of batch t of all stages are there, and publishes it. The
  ledger keeps, for each stage and batch, the version read and the version that its gradient was applied to.
- **The blocks before it** (``overlap``). A stage takes the newest version that it finds, none below t - staleness. Its
  gradient goes back to their owner, which applies that of batch t - staleness in step t.

The bound is also the back-pressure: a stage begins batch t after batch t - 1 was allowed version t - 1 - staleness, so
no stage is ever more than staleness + 1 batches ahead of the owner, and rings of staleness + 2 slots can't overflow.
With staleness 0 everything is exact: bit for bit the synchronous schedule, and still a pipeline, because the forward
pass of batch t + 1 needs no readout.

``local_async`` has no exchange: every stage trains a readout of its own, and the rings alone hold a stage back. So do
they where the owner takes the final stage's gradient alone.
"""

from multiprocessing.context import SpawnContext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from thinwire.local.consensus import combine
from thinwire.local.engine import ProcessSchedule, Wiring, Worker
from thinwire.local.rings import Ring, Snapshots, shared
from thinwire.local.schedule import State
from thinwire.local.stages import Batches, PlanOptimiser, Stage, TrainingPlan, local_backward
from thinwire.models import Readout

READ, APPLIED = 0, 1
"""Columns of the ledger."""


class LeadLink(NamedTuple):
    """Between a stage and the next, which runs the last blocks of the first once more."""

    weights: Snapshots
    gradients: Ring


class AsyncWiring(Wiring):
    """Rings of hidden states and gradients, and the snapshots."""

    exchange = True

    def __init__(self, plan: TrainingPlan, batches: Batches, context: SpawnContext) -> None:
        """Allocate everything that is shared."""
        super().__init__(plan, batches, context)
        rows, window = batches(0).shape
        weight = Readout(plan.model).weight  # draws nothing: a whole model would stay in the parent's memory
        slots = plan.staleness + 2
        hidden = {
            "hidden": ((rows, window - 1, plan.model.width), torch.float32),
            "targets": ((rows, window - 1), torch.int64),
        }
        links = range(plan.stages - 1)
        waits = not self.exchange or plan.consensus == "final"  # then no stage's gradient holds the owner back
        self.hidden = [Ring(context, slots, hidden, waits=waits) for _ in links]
        self.ledger = shared(torch.full((plan.stages, plan.steps, 2), -1, dtype=torch.int64))
        self.gradients: list[Ring] = []
        self.snapshots: Snapshots | None = None
        if self.exchange:
            gradient = {"gradient": (tuple(weight.shape), weight.dtype)}
            self.gradients = [Ring(context, slots, gradient) for _ in links if plan.consensus != "final"]
            self.snapshots = Snapshots(context, slots, weight, plan.stages - 1)
        self.leads: list[LeadLink] = []
        if plan.overlap:
            for stage in plan.initial_stages()[1][1:]:
                flat = _flat(stage.lead)
                ring = {"gradient": (tuple(flat.shape), flat.dtype)}
                self.leads.append(LeadLink(Snapshots(context, 2 * slots, flat, 1), Ring(context, slots, ring)))

    def restart(self, state: State, done: int) -> None:
        """Publish the readout and the overlapped blocks as they stand."""
        for ring in (*self.hidden, *self.gradients):
            ring.restart(done)
        if self.snapshots is not None:
            self.snapshots.restart(done, state["model.readout.weight"])
        for link, span in zip(self.leads, self.plan.spans[:-1], strict=False):
            names = [name for name, _ in self.plan.initial_model().blocks[0].named_parameters()]
            parts = [
                state[f"model.blocks.{i}.{name}"].flatten()
                for i in range(span.stop - self.plan.overlap, span.stop)
                for name in names
            ]
            link.weights.restart(done, torch.cat(parts))
            link.gradients.restart(done)
        if "ledger" in state:
            self.ledger[:, :done] = state["ledger"]

    def open_worker(self, rank: int) -> Worker:
        """Build stage ``rank``."""
        return StageWorker(rank, self)


class IndependentWiring(AsyncWiring):
    """The rings of ``local_async``: hidden states only."""

    exchange = False


def _flat(blocks: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in blocks.parameters()])


@torch.no_grad()
def _unflatten(flat: Tensor, blocks: nn.ModuleList, *, gradients: bool) -> None:
    """Add ``flat`` to the gradients of ``blocks``, or set their values to it."""
    start = 0
    for parameter in blocks.parameters():
        part = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        if gradients:
            assert parameter.grad is not None
            parameter.grad.add_(part)
        else:
            parameter.copy_(part)


class StageWorker(Worker):
    """One stage in its process."""

    def __init__(self, rank: int, wiring: AsyncWiring) -> None:
        """Keep the stage's own blocks, and copies of what it shares."""
        self.rank, self.wiring, self.plan = rank, wiring, wiring.plan
        self.halted = wiring.control.halted
        self.last = rank == self.plan.stages - 1
        model, stages = self.plan.initial_stages()
        self.readout = model.readout
        self.stage: Stage = stages[rank]
        owns = self.readout.weight if not wiring.exchange and not self.last else None
        self.optimiser = self.stage.optimiser(self.plan, owns)
        self.owner: PlanOptimiser | None = None
        if self.last:
            self.owner = self.plan.optimiser([], readout=self.readout.weight)
        self.before = wiring.leads[rank - 1] if wiring.leads and rank > 0 else None
        self.after = wiring.leads[rank] if wiring.leads and not self.last else None
        self.tail = self.stage.blocks[len(self.stage.blocks) - self.plan.overlap :]
        self.due = 0
        """First batch whose gradient of the tail has not arrived from the next stage."""
        self.carried: dict[int, Tensor] = {}
        """Such gradients that a loaded state brought."""
        self.flat = _flat(self.stage.lead) if self.before else torch.empty(0)

    def step(self, step: int) -> float:
        """One batch of this stage, as the module's text describes it."""
        w, rank = self.wiring, self.rank
        if rank == 0:
            batch = w.batches(step)
            inputs, targets = batch[:, :-1], batch[:, 1:]
        else:
            slot = w.hidden[rank - 1].take(step, self.halted)
            inputs, targets = slot["hidden"], slot["targets"]
        if self.before:
            self.before.weights.read(0, max(0, step - self.plan.lag(step)), self.flat, self.halted)
            _unflatten(self.flat, self.stage.lead, gradients=False)

        def ship(hidden: Tensor) -> None:
            w.hidden[rank].put(step, self.halted, hidden=hidden, targets=targets)

        _, loss = local_backward(
            self.stage,
            self.readout,
            inputs,
            targets,
            ship=None if self.last else ship,
            refresh=lambda: self._refresh(step),
        )
        if rank > 0:
            w.hidden[rank - 1].release(step)
        if self.before:
            self._return_lead(step)
        self._hand_over(step)
        if self.after:
            self._add_tail(step)
        self.optimiser.step(step)
        if self.after:
            self.after.weights.publish(step + 1, _flat(self.tail))
        return float(loss)

    @torch.no_grad()
    def _refresh(self, step: int) -> None:
        """Take the newest readout, when it is another process's."""
        version = step
        if self.wiring.snapshots is not None and not self.last:
            at_least = max(0, step - self.plan.lag(step))
            version = self.wiring.snapshots.read(self.rank, at_least, self.readout.weight, self.halted)
        self.wiring.ledger[self.rank, step, READ] = version

    def _return_lead(self, step: int) -> None:
        """Send the gradient of the blocks before this stage to their owner."""
        assert self.before is not None
        gradients = [parameter.grad for parameter in self.stage.lead.parameters()]
        flat = torch.cat([g.flatten() for g in gradients if g is not None])
        self.before.gradients.put(step, self.halted, gradient=flat)
        for parameter in self.stage.lead.parameters():
            parameter.grad = None

    def _add_tail(self, step: int) -> None:
        """Add the next stage's gradients of this stage's last blocks, up to that of batch ``step`` - lag."""
        assert self.after is not None
        while self.due <= step - self.plan.lag(step):
            if self.due in self.carried:
                _unflatten(self.carried.pop(self.due), self.tail, gradients=True)
            else:
                gradient = self.after.gradients.take(self.due, self.halted)["gradient"]
                _unflatten(gradient, self.tail, gradients=True)
                self.after.gradients.release(self.due)
            self.due += 1

    def _hand_over(self, step: int) -> None:
        """Ship this stage's readout gradient; the owner gathers all of them, updates the readout and publishes it."""
        w, gradient = self.wiring, self.readout.weight.grad
        assert gradient is not None
        if not w.exchange and not self.last:
            w.ledger[self.rank, step, APPLIED] = step
            return  # the stage's own optimiser moves it
        if self.owner is None:
            if w.gradients:
                w.gradients[self.rank].put(step, self.halted, gradient=gradient)
            self.readout.weight.grad = None
            return
        if w.gradients:
            arrived = [ring.take(step, self.halted)["gradient"] for ring in w.gradients]
            self.readout.weight.grad = combine([*arrived, gradient], self.plan.consensus)
            for ring in w.gradients:
                ring.release(step)
        self.owner.step(step)
        if w.snapshots is not None:
            w.ledger[:, step, APPLIED] = step
            w.snapshots.publish(step + 1, self.readout.weight)
        else:
            w.ledger[self.rank, step, APPLIED] = step

    def state(self) -> State:
        """This stage's blocks, embedding and readout where it owns them, moments, and gradients on their way."""
        state: State = self.stage.part_of_model()
        if self.last:
            state["model.readout.weight"] = self.readout.weight
            assert self.owner is not None
            state |= {f"moments.readout.{name}": value for name, value in self.owner.state().items()}
        elif not self.wiring.exchange:
            state[f"readout.{self.rank}"] = self.readout.weight
        if self.rank == 0:
            done = int((self.wiring.control.clock[0] > 0).sum())
            state["ledger"] = self.wiring.ledger[:, :done].clone()
        state |= {f"private.{self.rank}.{n}": v for n, v in self.stage.private.state_dict().items()}
        state |= {f"moments.{self.rank}.{name}": value for name, value in self.optimiser.state().items()}
        return state | self._on_their_way()

    def _on_their_way(self) -> State:
        """Take the tail's gradients that are not due yet out of the ring, and keep them here."""
        if self.after is None:
            return {}
        done = int((self.wiring.control.clock[self.rank] > 0).sum())
        for step in range(self.due, done):
            if step not in self.carried:
                self.carried[step] = self.after.gradients.take(step, self.halted)["gradient"].clone()
                self.after.gradients.release(step)
        return {f"tail.{self.rank}.{step}": gradient for step, gradient in self.carried.items()}

    @torch.no_grad()
    def load(self, state: State, done: int) -> None:
        """Take over the stage's part."""
        own = self.state()
        for name, value in own.items():
            if name != "ledger":
                value.copy_(state[name])
        moments = {name: state[f"moments.{self.rank}.{name}"] for name in self.optimiser.state()}
        self.optimiser.load(moments, done)
        if self.owner is not None:
            self.owner.load({name: state[f"moments.readout.{name}"] for name in self.owner.state()}, done)
        elif self.wiring.exchange and self.wiring.snapshots is not None:
            self.wiring.snapshots.expect(self.rank, done)
        if self.before:
            self.before.weights.expect(0, done)
        prefix = f"tail.{self.rank}."
        self.carried = {int(n.removeprefix(prefix)): v.clone() for n, v in state.items() if n.startswith(prefix)}
        self.due = min(self.carried, default=done)


class RGCAsync(ProcessSchedule):
    """Stage processes that share one readout through snapshots of bounded age."""

    wiring_type = AsyncWiring
    _wiring: AsyncWiring

    def ledger(self) -> Tensor | None:
        """Readout version read and version applied to, int64 [stages, steps done, 2]."""
        return self._wiring.ledger[:, : self.done].clone()


class LocalAsync(ProcessSchedule):
    """Stage processes that share nothing but hidden states."""

    wiring_type = IndependentWiring
