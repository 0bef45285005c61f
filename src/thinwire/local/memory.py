"""Where a schedule's bytes go: what it keeps, and what one step holds at its fullest moment.

What is kept (parameters, moments, snapshots, rings) follows from the plan. What a step holds besides (gradients,
activations that wait for backward, products under way) is counted: the worker's own code runs one step in this
process while every tensor that torch makes is noted, with its end. The scratch memory inside a kernel is not seen, nor
what the allocator keeps for later.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from thinwire.local.asynchronous import AsyncWiring, IndependentWiring, RGCAsync
from thinwire.local.data_parallel import GlobalDDP
from thinwire.local.pipeline import Global1F1B
from thinwire.local.schedule import GlobalBackprop, InProcess, State
from thinwire.local.schedules import SCHEDULES
from thinwire.local.stages import PlanOptimiser, Stage, TrainingPlan, local_backward
from thinwire.models import Readout, next_byte_loss

PARTS = ("parameters", "moments", "snapshots", "rings", "gradients", "activations")


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the tensors that were made since it was entered and are still alive, and their peak."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.parameters = list(parameters)
        self.now = self.peak = self.gradients_at_peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        old = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves(args) if isinstance(leaf, Tensor)}
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in old:
                self._note(leaf.untyped_storage())
        return out

    def _note(self, storage: torch.UntypedStorage) -> None:
        key = storage.data_ptr()
        if not key or key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        weakref.finalize(storage, self._end, key, size)
        if self.now > self.peak:
            self.peak = self.now
            self.gradients_at_peak = sum(p.grad.nbytes for p in self.parameters if p.grad is not None)

    def _end(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def memory_ledger(name: str, plan: TrainingPlan, rows: int) -> dict[str, int]:
    """Return bytes by part, summed over the schedule's processes, for batches of ``rows`` windows of one context.

    Parts are those of ``PARTS``: *gradients* and *activations* are what the fullest moment of a step holds of each, the
    latter with products under way. Every process counts at its own fullest moment. Raises ValueError for an unknown
    schedule.
    """
    ledger = dict.fromkeys(PARTS, 0)
    kind = SCHEDULES.get(name)
    if kind is None:
        raise ValueError(f"no schedule {name!r}; there are {', '.join(SCHEDULES)}")
    if issubclass(kind, InProcess):
        _add(ledger, _in_process(kind(plan, _Zeros(plan, rows)), rows))
    elif kind is GlobalDDP:
        _replicas(ledger, plan, rows)
    elif kind is Global1F1B:
        _pipeline(ledger, plan, rows)
    else:
        _stages(ledger, plan, rows, exchange=kind is RGCAsync)
    return ledger


@dataclass(frozen=True)
class _Zeros:
    """A batch of zeros, whatever the step."""

    plan: TrainingPlan
    rows: int

    def __call__(self, step: int) -> Tensor:
        return torch.zeros(self.rows, self.plan.model.context + 1, dtype=torch.int64)


def _add(ledger: dict[str, int], more: Mapping[str, int]) -> None:
    for part, amount in more.items():
        ledger[part] += amount


def _one_step(parameters: Iterable[nn.Parameter], work: Callable[[], None]) -> dict[str, int]:
    with _Live(parameters) as live:
        work()
    return {"gradients": live.gradients_at_peak, "activations": live.peak - live.gradients_at_peak}


def _kept(state: State) -> dict[str, int]:
    moments = [value for name, value in state.items() if name.startswith("moments.")]
    return {"parameters": _bytes(state.values()) - _bytes(moments), "moments": _bytes(moments)}


def _in_process(schedule: InProcess, rows: int) -> dict[str, int]:
    batch = schedule.batches(0)

    def work() -> None:
        schedule.gradients(batch[:, :-1], batch[:, 1:])
        for optimiser in schedule.optimisers:
            optimiser.step(0)

    parameters = [*schedule.whole.parameters(), *(readout.weight for readout in schedule.readouts)]
    for stage in schedule.stages:
        parameters += stage.private.parameters()
    return _kept(schedule.state()) | _one_step(parameters, work)


def _replicas(ledger: dict[str, int], plan: TrainingPlan, rows: int) -> None:
    """One copy of the weights, a row of gradients for each replica; a replica's tables are views of both."""
    alone = _in_process(GlobalBackprop(plan, _Zeros(plan, rows // plan.stages)), rows)
    ledger["parameters"] = alone["parameters"]
    ledger["moments"] = alone["moments"]
    ledger["gradients"] = alone["parameters"] * (plan.stages + 1)  # and the mean, a share in each
    ledger["activations"] = alone["activations"] * plan.stages


def _pipeline(ledger: dict[str, int], plan: TrainingPlan, rows: int) -> None:
    part = rows // plan.microbatches
    hidden = part * plan.model.context * plan.model.width * 4
    ledger["rings"] = 2 * (plan.stages - 1) * (plan.stages + 1) * hidden
    for rank, stage in enumerate(plan.initial_stages()[1]):
        ahead = min(plan.stages - rank, plan.microbatches)
        readout = plan.initial_model().readout if rank == plan.stages - 1 else None
        optimiser = stage.optimiser(plan, readout.weight if readout else None)
        own = [*stage.parameters(), *([readout.weight] if readout else [])]

        def work(
            stage: Stage = stage,
            rank: int = rank,
            ahead: int = ahead,
            readout: Readout | None = readout,
            optimiser: PlanOptimiser = optimiser,
        ) -> None:
            outs = []
            for _ in range(ahead):
                out, _ = stage(_inputs(plan, rank, part).requires_grad_(rank > 0))
                outs.append(out.sum() if readout is None else _loss(readout, out))
            for out in outs:
                out.backward()
            optimiser.step(0)

        _add(ledger, {"parameters": _bytes(own), "moments": _bytes(optimiser.state().values())})
        _add(ledger, _one_step(own, work))


def _loss(readout: Readout, hidden: Tensor) -> Tensor:
    return next_byte_loss(readout(hidden), torch.zeros(hidden.shape[:-1], dtype=torch.int64))


def _inputs(plan: TrainingPlan, rank: int, rows: int) -> Tensor:
    shape = (rows, plan.model.context)
    return torch.zeros(shape, dtype=torch.int64) if rank == 0 else torch.randn(*shape, plan.model.width)


def _stages(ledger: dict[str, int], plan: TrainingPlan, rows: int, *, exchange: bool) -> None:
    wiring = (AsyncWiring if exchange else IndependentWiring)(plan, _Zeros(plan, rows), get_context("spawn"))
    for ring in (*wiring.hidden, *wiring.gradients, *(link.gradients for link in wiring.leads)):
        ledger["rings"] += _bytes(ring.buffers.values())
    for snapshots in (wiring.snapshots, *(link.weights for link in wiring.leads)):
        ledger["snapshots"] += 0 if snapshots is None else snapshots.buffers.nbytes
    for rank in range(plan.stages):
        model, stages = plan.initial_stages()
        stage, readout = stages[rank], model.readout
        owned = readout.weight if stage.last or not exchange else None
        optimiser = stage.optimiser(plan, owned)
        own = [*stage.parameters(), readout.weight]

        def work(
            stage: Stage = stage, rank: int = rank, readout: Readout = readout, optimiser: PlanOptimiser = optimiser
        ) -> None:
            inputs = _inputs(plan, rank, rows)
            local_backward(stage, readout, inputs, torch.zeros(inputs.shape[:2], dtype=torch.int64))
            optimiser.step(0)

        _add(ledger, {"parameters": _bytes(own), "moments": _bytes(optimiser.state().values())})
        _add(ledger, _one_step(own, work))
