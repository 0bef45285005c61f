"""The process engine of asynchronous readout-gradient consensus: one spawned worker a stage, in a pipeline without
locks.

Stage k takes the hidden states of batch t from the ring before it, refines them, hands the detached result on at once,
and then runs its own loss backward while the next stage is already at work. It ships the gradient of the readout to the
owner (the final stage) and steps its own optimiser. Every stage sees every batch in order, so its weights are those of
the synchronous schedule's timing; the one thing that may be old is the snapshot of the readout:

- stage k starts batch t when it can read a readout version of at least t - staleness (version v = after v updates);
- the owner turns version t into t + 1 when the gradients of batch t of all stages are there, and publishes it.

This bound is also the only back-pressure: no stage is ever more than staleness + 1 batches ahead of the owner, so rings
of staleness + 1 slots can't overflow. With staleness 0 every stage waits for the update of the batch before: bit for
bit the synchronous schedule. The ledger keeps, for each stage and batch, the version that was read and the version that
its gradient was applied to.

Workers sleep in pipes, never spin. The parent sends few commands and sleeps; it notices a dead worker through
``thinwire.spawn``, and one that hangs by the lack of progress.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from thinwire.local.consensus import mean_gradient
from thinwire.local.rings import Halted, Ring, Snapshots, shared
from thinwire.local.stages import Batches, Stage, TrainingPlan, cut, local_backward
from thinwire.models import ByteTransformer
from thinwire.muon import RecipeOptimiser
from thinwire.spawn import WorkerError, run_workers

_START_SECONDS = 300.0
READ, APPLIED = 0, 1
"""Columns of the ledger."""


@dataclass
class _Wiring:
    """Everything that the workers share; pickled once, when they start."""

    plan: TrainingPlan
    batches: Batches
    hidden: list[Ring]  # k: from stage k to stage k + 1
    gradients: list[Ring]  # k: from stage k to the owner
    snapshots: Snapshots
    commands: list[tuple[Connection, Connection]]
    reports: list[tuple[Connection, Connection]]
    ledger: Tensor  # int64 [stages, steps, 2]
    losses: Tensor  # float64 [stages, steps], nats
    clock: Tensor  # float64 [stages, steps], seconds on the monotonic clock at the end of the stage's step
    pids: Tensor  # int64 [stages], 0 until the worker runs
    halt: Tensor  # int64 [1]


def core_groups(stages: int, threads: int) -> list[set[int]] | None:
    """Return disjoint groups of ``threads`` of this process's cores, one a stage; None when there are too few."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < stages * threads:
        return None
    return [set(cores[k * threads : (k + 1) * threads]) for k in range(stages)]


def _wire(plan: TrainingPlan, batches: Batches, initial: ByteTransformer) -> _Wiring:
    context = get_context("spawn")
    rows, window = batches(0).shape
    slots = plan.staleness + 1
    weight = initial.readout.weight
    layout = {
        "hidden": ((rows, window - 1, plan.model.width), torch.float32),
        "targets": ((rows, window - 1), torch.int64),
    }
    return _Wiring(
        plan=plan,
        batches=batches,
        hidden=[Ring(context, slots, layout) for _ in range(plan.stages - 1)],
        gradients=[
            Ring(context, slots, {"gradient": (tuple(weight.shape), weight.dtype)}) for _ in range(plan.stages - 1)
        ],
        snapshots=Snapshots(context, max(2, slots), weight, plan.stages - 1),
        commands=[context.Pipe(duplex=False) for _ in range(plan.stages)],
        reports=[context.Pipe(duplex=False) for _ in range(plan.stages)],
        ledger=shared(torch.full((plan.stages, plan.steps, 2), -1, dtype=torch.int64)),
        losses=shared(torch.zeros(plan.stages, plan.steps, dtype=torch.float64)),
        clock=shared(torch.zeros(plan.stages, plan.steps, dtype=torch.float64)),
        pids=shared(torch.zeros(plan.stages, dtype=torch.int64)),
        halt=shared(torch.zeros(1, dtype=torch.int64)),
    )


class _Worker:
    """One stage in its process."""

    def __init__(self, rank: int, wiring: _Wiring) -> None:
        self.rank, self.wiring = rank, wiring
        self.last = rank == wiring.plan.stages - 1
        model = wiring.plan.initial_model()
        self.readout = model.readout
        self.stage = Stage(model, cut(wiring.plan.model.blocks, wiring.plan.stages)[rank])
        self.optimiser = self.stage.optimiser(wiring.plan)
        self.owner = (
            RecipeOptimiser([], [self.readout.weight], recipe=wiring.plan.recipe, steps=wiring.plan.steps)
            if self.last
            else None
        )
        self.done = 0

    def halted(self) -> bool:
        return bool(self.wiring.halt[0])

    def step(self) -> None:
        """One batch of this stage, as the module's text describes it."""
        w, rank, step = self.wiring, self.rank, self.done
        version = step if self.last else self._read_snapshot(step)
        if rank == 0:
            batch = w.batches(step)
            inputs, targets = batch[:, :-1], batch[:, 1:]
        else:
            slot = w.hidden[rank - 1].take(step, self.halted)
            inputs, targets = slot["hidden"], slot["targets"]
        ship = None if self.last else lambda hidden: w.hidden[rank].put(step, hidden=hidden, targets=targets)
        _, loss = local_backward(self.stage, self.readout, inputs, targets, ship=ship)
        if rank > 0:
            w.hidden[rank - 1].release(step)
        self._hand_over(step)
        self.optimiser.step(step)
        w.ledger[rank, step, READ] = version
        w.losses[rank, step] = loss
        w.clock[rank, step] = time.monotonic()
        self.done = step + 1

    def _read_snapshot(self, step: int) -> int:
        at_least = max(0, step - self.wiring.plan.staleness)
        with torch.no_grad():
            return self.wiring.snapshots.read(self.rank, at_least, self.readout.weight, self.halted)

    def _hand_over(self, step: int) -> None:
        """Ship this stage's readout gradient; the owner gathers all of them, updates the readout and publishes it."""
        w, gradient = self.wiring, self.readout.weight.grad
        assert gradient is not None
        if self.owner is None:
            w.gradients[self.rank].put(step, gradient=gradient)
            self.readout.weight.grad = None
            return
        arrived = [ring.take(step, self.halted)["gradient"] for ring in w.gradients]
        self.readout.weight.grad = mean_gradient([*arrived, gradient])
        for ring in w.gradients:
            ring.release(step)
        self.owner.step(step)
        w.ledger[:, step, APPLIED] = step
        w.snapshots.publish(step + 1, self.readout.weight)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """This stage's part of the full model's state, by the full model's names."""
        first = self.stage.span.start
        own: dict[str, Tensor] = {}
        for name, value in self.stage.blocks.state_dict().items():
            position, rest = name.split(".", 1)
            own[f"blocks.{first + int(position)}.{rest}"] = value
        if self.stage.embedding is not None:
            own["embedding"] = self.stage.embedding.detach()
        if self.last:
            own["readout.weight"] = self.readout.weight.detach()
        return {name: value.numpy() for name, value in own.items()}


def _serve(rank: int, wiring: _Wiring) -> None:
    """Body of a worker: build the stage, say so, then follow commands until told to stop."""
    wiring.pids[rank] = os.getpid()
    groups = core_groups(wiring.plan.stages, wiring.plan.threads)
    if groups is not None:
        os.sched_setaffinity(0, groups[rank])
    worker = _Worker(rank, wiring)
    report, commands = wiring.reports[rank][1], wiring.commands[rank][0]
    report.send("ready")
    try:
        while True:
            while not commands.poll(0.5):
                if worker.halted():
                    return
            command, value = commands.recv()
            if command == "stop":
                return
            if command == "advance":
                while worker.done < value:
                    worker.step()
                report.send(worker.done)
            else:
                report.send(worker.state())
    except Halted:
        return


class StageEngine:
    """Stage processes that train the plan's model asynchronously; use as a context manager.

    ``patience`` is the seconds without any progress after which the run is given up. Every method raises WorkerError
    with the worker's traceback when a worker raised, died or hangs; all workers are ended then.
    """

    def __init__(self, plan: TrainingPlan, batches: Batches, *, patience: float = 120.0) -> None:
        """Start the workers and wait until each has built its stage."""
        self.plan = plan
        self.patience = patience
        self.done = 0
        self._wiring = _wire(plan, batches, plan.initial_model())
        self._failure: BaseException | None = None
        # Each worker asks the kernel to die with the thread that started it: this thread lives as long as they do.
        self._runner = threading.Thread(target=self._run, name="stage-engine", daemon=True)
        self._runner.start()
        self._gather(patience=max(patience, _START_SECONDS))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have begun, in the order of the stages."""
        return [int(pid) for pid in self._wiring.pids if pid]

    def _run(self) -> None:
        try:
            run_workers(_serve, (self._wiring,), workers=self.plan.stages, threads=self.plan.threads)
        except BaseException as error:
            self._failure = error

    def _gather(self, progress: Callable[[], object] | None = None, patience: float | None = None) -> list[Any]:
        """Return one report of each worker, as long as they live and progress."""
        answers: list[Any] = []
        patience = self.patience if patience is None else patience
        seen, since = None, time.monotonic()
        for reader, _ in self._wiring.reports:
            while not reader.poll(0.1):
                if not self._runner.is_alive():
                    raise self._failure or WorkerError("the stage workers ended before their work was done")
                now = progress() if progress else None
                if now != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() - since > patience:
                    self._kill()
                    raise WorkerError(f"no stage progressed for {patience:g} s; stages stood at {self._steps()}")
            answers.append(reader.recv())
        return answers

    def _steps(self) -> list[int]:
        return [int(count) for count in (self._wiring.clock > 0).sum(1)]

    def _command(self, command: str, value: int = 0) -> None:
        for _, writer in self._wiring.commands:
            writer.send((command, value))

    def advance(self, steps: int) -> list[float]:
        """Train ``steps`` more batches through all stages; return the final stage's loss of each, in nats.

        Raises ValueError beyond the plan's steps.
        """
        if not 0 < steps <= self.plan.steps - self.done:
            raise ValueError(f"the plan has {self.plan.steps} steps, {self.done} are done: {steps} more do not fit")
        self._command("advance", self.done + steps)
        self._gather(self._steps)
        start, self.done = self.done, self.done + steps
        return self.losses(start)[-1]

    def losses(self, start: int = 0) -> list[list[float]]:
        """Losses in nats of each stage, of the steps from ``start`` on."""
        return [[float(value) for value in row] for row in self._wiring.losses[:, start : self.done]]

    @property
    def ledger(self) -> Tensor:
        """Readout version read and version applied to, int64 [stages, steps done, 2]."""
        return self._wiring.ledger[:, : self.done].clone()

    def model(self) -> ByteTransformer:
        """Return the model as it stands, gathered from all stages."""
        self._command("state")
        model = self.plan.initial_model()
        state = {name: torch.from_numpy(value) for part in self._gather() for name, value in part.items()}
        model.load_state_dict(state)
        return model

    def _kill(self) -> None:
        self._wiring.halt[0] = 1
        while self._runner.is_alive():
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._runner.join(timeout=0.2)

    def close(self) -> None:
        """End the workers and wait for their end; a second call does nothing. Never raises for a worker's failure."""
        self._wiring.halt[0] = 1
        self._runner.join(timeout=10.0)
        if self._runner.is_alive():
            self._kill()
        for reader, writer in [*self._wiring.commands, *self._wiring.reports]:
            reader.close()
            writer.close()

    def __enter__(self) -> "StageEngine":
        """Return the running engine."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers."""
        self.close()
