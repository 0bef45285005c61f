"""The process engine: spawned workers that train together under a parent that sleeps.

Three parts meet here. ``Control`` is what parent and workers always share: commands, reports, losses, the clock of each
step, the halt flag. A ``Wiring`` adds the rings of one schedule and knows how to open its workers; it is pickled once,
when they start. A ``Worker`` is one process's share of the training. ``ProcessSchedule`` is the parent's side.

Workers sleep in pipes, never spin. The parent sends few commands and sleeps; it notices a dead worker through
``thinwire.spawn``, and one that hangs by the lack of progress. Workers are pinned to disjoint groups of cores where
there are enough of them.
"""

import contextlib
import ctypes
import os
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import SpawnContext
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.local.rings import Halted, shared
from thinwire.local.schedule import Schedule, State
from thinwire.local.stages import Batches, TrainingPlan
from thinwire.models import ByteTransformer
from thinwire.spawn import WorkerError, run_workers

_START_SECONDS = 300.0


class Control:
    """Commands and reports of each worker, and what it tells of each step."""

    def __init__(self, context: SpawnContext, workers: int, steps: int) -> None:
        """Allocate for ``workers`` workers and ``steps`` steps."""
        self.workers = workers
        self.commands = [context.Pipe(duplex=False) for _ in range(workers)]
        self.reports = [context.Pipe(duplex=False) for _ in range(workers)]
        self.losses = shared(torch.zeros(workers, steps, dtype=torch.float64))
        """Nats, by worker and step."""
        self.clock = shared(torch.zeros(workers, steps, dtype=torch.float64))
        """Seconds on the monotonic clock at the end of the worker's step; 0 before."""
        self.pids = shared(torch.zeros(workers, dtype=torch.int64))
        """0 until the worker runs."""
        self._halt = shared(torch.zeros(1, dtype=torch.int64))

    def halt(self) -> None:
        """Ask all workers to end."""
        self._halt[0] = 1

    def halted(self) -> bool:
        """Whether the workers were asked to end."""
        return bool(self._halt[0])


class Worker(ABC):
    """One process's share of a schedule."""

    @abstractmethod
    def step(self, step: int) -> float:
        """Train this worker's part of 0-based ``step`` and return its loss in nats."""

    @abstractmethod
    def state(self) -> State:
        """Return this worker's part of the state.

        Names that begin with ``model.`` are the model's own; each is one worker's.
        """

    @abstractmethod
    def load(self, state: State, done: int) -> None:
        """Take over its part of ``state`` after ``done`` steps; all workers do before any of them steps."""


class Wiring(ABC):
    """What the workers of a schedule share; pickled once, when they start."""

    def __init__(self, plan: TrainingPlan, batches: Batches, context: SpawnContext) -> None:
        """Open the control."""
        self.plan = plan
        self.batches = batches
        self.control = Control(context, plan.stages, plan.steps)

    def restart(self, state: State, done: int) -> None:  # noqa: B027 (shared weights alone need no restart)
        """Set what is shared to where it stood after ``done`` steps; before the workers load their parts."""

    @abstractmethod
    def open_worker(self, rank: int) -> Worker:
        """Build worker ``rank``, in its process."""


def core_groups(workers: int, threads: int) -> list[set[int]] | None:
    """Return disjoint groups of ``threads`` of this process's cores, one a worker; None when there are too few."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < workers * threads:
        return None
    return [set(cores[k * threads : (k + 1) * threads]) for k in range(workers)]


def _return_freed() -> None:
    """Give freed memory back to the system, where the C library can: a worker has built more than it keeps."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _serve(rank: int, wiring: Wiring) -> None:
    """Body of a worker: build its part, say so, then follow commands until the halt."""
    control = wiring.control
    control.pids[rank] = os.getpid()
    groups = core_groups(wiring.plan.stages, wiring.plan.threads)
    if groups is not None:
        os.sched_setaffinity(0, groups[rank])
    worker = wiring.open_worker(rank)
    _return_freed()
    report, commands = control.reports[rank][1], control.commands[rank][0]
    report.send("ready")
    done = 0
    with contextlib.suppress(Halted):
        while True:
            while not commands.poll(0.5):
                if control.halted():
                    return
            command, value = commands.recv()
            if command == "advance":
                for step in range(done, value):
                    if control.halted():
                        return
                    control.losses[rank, step] = worker.step(step)
                    control.clock[rank, step] = time.monotonic()
                done = value
                report.send(done)
            elif command == "load":
                state, done = value
                worker.load({name: torch.from_numpy(part) for name, part in state.items()}, done)
                report.send(done)
            else:
                report.send({name: _array(part) for name, part in worker.state().items()})


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().numpy()


class ProcessSchedule(Schedule):
    """A schedule in worker processes.

    ``patience`` is the seconds without any progress after which the run is given up. Every method raises WorkerError
    with the worker's traceback when a worker raised, died or hangs; all workers are ended then.
    """

    wiring_type: ClassVar[type[Wiring]]

    def __init__(self, plan: TrainingPlan, batches: Batches, *, patience: float = 120.0) -> None:
        """Start the workers and wait until each has built its part."""
        self.plan = plan
        self.patience = patience
        self._wiring = type(self).wiring_type(plan, batches, get_context("spawn"))
        self._control = self._wiring.control
        _return_freed()
        self._failure: BaseException | None = None
        # Each worker asks the kernel to die with the thread that started it: this thread lives as long as they do.
        self._runner = threading.Thread(target=self._run, name="worker-runner", daemon=True)
        self._runner.start()
        self._gather(patience=max(patience, _START_SECONDS))

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that have begun, in the order of their ranks."""
        return [int(pid) for pid in self._control.pids if pid]

    def _run(self) -> None:
        try:
            run_workers(_serve, (self._wiring,), workers=self._control.workers, threads=self.plan.threads)
        except BaseException as error:
            self._failure = error

    def _gather(self, progress: Callable[[], object] | None = None, patience: float | None = None) -> list[Any]:
        """Return one report of each worker, as long as they live and progress."""
        answers: list[Any] = []
        patience = self.patience if patience is None else patience
        seen, since = None, time.monotonic()
        for reader, _ in self._control.reports:
            while not reader.poll(0.1):
                if not self._runner.is_alive():
                    raise self._failure or WorkerError("the workers ended before their work was done")
                now = progress() if progress else None
                if now != seen:
                    seen, since = now, time.monotonic()
                if time.monotonic() - since > patience:
                    self._kill()
                    raise WorkerError(f"no worker progressed for {patience:g} s; they stood at steps {self._steps()}")
            answers.append(reader.recv())
        return answers

    def _steps(self) -> list[int]:
        return [int(count) for count in (self._control.clock > 0).sum(1)]

    def _command(self, command: str, value: object = None) -> None:
        for _, writer in self._control.commands:
            try:
                writer.send((command, value))
            except BrokenPipeError:  # its end is told by the next gathering of reports
                return

    def _advance(self, steps: int) -> list[float]:
        self._command("advance", self.done + steps)
        self._gather(self._steps)
        start, self.done = self.done, self.done + steps
        return self.model_losses(self._control.losses[:, start : self.done])

    def model_losses(self, losses: Tensor) -> list[float]:
        """Return the model's losses from those of the workers [workers, steps]: here the final one's."""
        return [float(value) for value in losses[-1]]

    def losses(self, start: int = 0) -> list[list[float]]:
        """Losses in nats of each worker, of the steps from ``start`` on."""
        return [[float(value) for value in row] for row in self._control.losses[:, start : self.done]]

    def state(self) -> State:
        """Gather the state from all workers."""
        self._command("state")
        return {name: torch.from_numpy(part) for answer in self._gather() for name, part in answer.items()}

    def load(self, state: State, done: int) -> None:
        """Hand the state to the workers."""
        self._wiring.restart(state, done)
        self._command("load", ({name: _array(part) for name, part in state.items()}, done))
        self._gather()
        self._control.clock[:, :done] = 1.0
        self.done = done

    def model(self) -> ByteTransformer:
        """Return the model as it stands, gathered from all workers."""
        model = self.plan.initial_model()
        prefix = "model."
        state = {name.removeprefix(prefix): v for name, v in self.state().items() if name.startswith(prefix)}
        model.load_state_dict(state)
        return model

    def _kill(self) -> None:
        self._control.halt()
        while self._runner.is_alive():
            for pid in self.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._runner.join(timeout=0.2)

    def close(self) -> None:
        """End the workers and wait for their end; a second call does nothing. Never raises for a worker's failure."""
        self._control.halt()
        self._runner.join(timeout=10.0)
        if self._runner.is_alive():
            self._kill()
        for reader, writer in [*self._control.commands, *self._control.reports]:
            reader.close()
            writer.close()
