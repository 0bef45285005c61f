"""Shared memory between stage processes: rings of slots, versioned snapshots of weights, and a barrier.

Rings and snapshots hold their numbers in tensors that are allocated once and shared by file descriptor; their names are
gone from the file system before the first worker starts, so nothing can be left behind, however the processes end. A
step moves numbers into a slot and then sends an 8-byte token through a pipe: the token says that the slot is whole, and
the pipe is what the reader sleeps on. Nothing is pickled and no shared memory allocated while training runs.

A ring built with ``waits`` makes its writer sleep until a slot is free. The others never wait: the bound on staleness
is the back-pressure there (see ``asynchronous``) and keeps every writer fewer than ``slots`` items ahead of its reader.
Each write checks that this held and raises RingError otherwise.
"""

import contextlib
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext

import torch
from torch import Tensor

_POLL_SECONDS = 0.2


class RingError(RuntimeError):
    """A slot was about to be overwritten while in use, or a token came out of order: the engine's bound was broken."""


class Halted(Exception):  # noqa: N818 (an order to end, not an error)
    """The engine asked its workers to end while this one was waiting."""


def receive(pipe: Connection, halted: Callable[[], bool]) -> int:
    """Sleep until a token arrives and return it. Raises Halted when ``halted()`` turns true before."""
    while not pipe.poll(_POLL_SECONDS):
        if halted():
            raise Halted
    return int.from_bytes(pipe.recv_bytes(8), "little", signed=True)


def send(pipe: Connection, token: int) -> None:
    """Send one token; a broken pipe means that the run is ending and is no error of the sender."""
    with contextlib.suppress(BrokenPipeError):
        pipe.send_bytes(token.to_bytes(8, "little", signed=True))


def shared(tensor: Tensor) -> Tensor:
    """Move ``tensor`` into memory that workers share once they are started with it."""
    moved: Tensor = tensor.contiguous().share_memory_()  # type: ignore[no-untyped-call]
    return moved


class Ring:
    """Slots that one process fills and another empties, in the order of the steps.

    ``layout`` names the tensors of a slot: name -> (shape, dtype). ``take`` gives views into the slot: they stay whole
    until ``release``. With ``waits`` the writer sleeps while all slots are in use.
    """

    def __init__(
        self,
        context: SpawnContext,
        slots: int,
        layout: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
        *,
        waits: bool = False,
    ) -> None:
        """Allocate ``slots`` slots and the pipes of the tokens."""
        self.slots = slots
        self.buffers = {
            name: shared(torch.zeros((slots, *shape), dtype=dtype)) for name, (shape, dtype) in layout.items()
        }
        self.released = shared(torch.zeros(1, dtype=torch.int64))
        self.reader, self.writer = context.Pipe(duplex=False)
        self._freed = context.Pipe(duplex=False) if waits else None

    def restart(self, step: int) -> None:
        """Expect ``step`` next; only for an empty ring."""
        self.released[0] = step

    def put(self, step: int, halted: Callable[[], bool], **tensors: Tensor) -> None:
        """Copy ``tensors`` into the slot of ``step`` and announce it.

        Raises RingError for a slot still in use, Halted when the end comes while it waits for one.
        """
        if self._freed is not None:
            while self._freed[0].poll() or step - int(self.released[0]) >= self.slots:
                receive(self._freed[0], halted)
        if step - int(self.released[0]) >= self.slots:
            raise RingError(f"slot of step {step - self.slots} is still read while step {step} arrives")
        for name, buffer in self.buffers.items():
            buffer[step % self.slots].copy_(tensors[name])
        send(self.writer, step)

    def take(self, step: int, halted: Callable[[], bool]) -> dict[str, Tensor]:
        """Wait for ``step`` and return views of its slot. Raises RingError for another step, Halted at the end."""
        token = receive(self.reader, halted)
        if token != step:
            raise RingError(f"step {token} arrived where step {step} was due")
        return {name: buffer[step % self.slots] for name, buffer in self.buffers.items()}

    def release(self, step: int) -> None:
        """Give the slot of ``step`` back; its views must not be read any more."""
        self.released[0] = step + 1
        if self._freed is not None:
            send(self._freed[1], step)


class Barrier:
    """A meeting point of ``parties`` processes: nobody leaves before all have come. They sleep in pipes."""

    def __init__(self, context: SpawnContext, parties: int) -> None:
        """Open a pipe for each ordered pair."""
        self.pipes = {(a, b): context.Pipe(duplex=False) for a in range(parties) for b in range(parties) if a != b}

    def wait(self, rank: int, halted: Callable[[], bool]) -> None:
        """Tell the others that ``rank`` is here and sleep until all are. Raises Halted at the end."""
        for (sender, _), (_, writer) in self.pipes.items():
            if sender == rank:
                send(writer, rank)
        for (_, receiver), (reader, _) in self.pipes.items():
            if receiver == rank:
                receive(reader, halted)


class Snapshots:
    """Versions of one tensor, written by its owner, read by others: buffers in turn, each stamped with its version.

    Version v stands in slot v modulo ``slots``. With ``slots`` above the staleness bound the owner can never reach a
    slot that a reader may still choose; the stamp, read before and after, proves it at each read.
    """

    def __init__(self, context: SpawnContext, slots: int, initial: Tensor, readers: int) -> None:
        """Publish ``initial`` as version 0."""
        self.slots = slots
        self.buffers = shared(initial.detach().repeat(slots, *[1] * initial.dim()))
        self.stamps = shared(torch.full((slots,), -1, dtype=torch.int64))
        self.stamps[0] = 0
        self.pipes = [context.Pipe(duplex=False) for _ in range(readers)]
        self._known = [0] * readers

    def restart(self, version: int, value: Tensor) -> None:
        """Make ``value`` the one ``version`` that there is; only while nobody reads."""
        self.stamps.fill_(-1)
        self.buffers[version % self.slots].copy_(value.detach())
        self.stamps[version % self.slots] = version

    def expect(self, reader: int, version: int) -> None:
        """Let ``reader`` know of ``version`` without a token, after ``restart``."""
        self._known[reader] = version

    def publish(self, version: int, value: Tensor) -> None:
        """Write ``value`` as ``version`` (one more than the last) and tell the readers."""
        slot = version % self.slots
        self.stamps[slot] = -1
        self.buffers[slot].copy_(value.detach())
        self.stamps[slot] = version
        for _, writer in self.pipes:
            send(writer, version)

    def read(self, reader: int, at_least: int, into: Tensor, halted: Callable[[], bool]) -> int:
        """Copy the newest version into ``into`` and return it, after waiting until it is ``at_least`` that.

        Raises RingError for a torn read, Halted at the end.
        """
        pipe = self.pipes[reader][0]
        known = self._known[reader]
        while known < at_least or pipe.poll():
            known = receive(pipe, halted)
        self._known[reader] = known
        slot = known % self.slots
        before = int(self.stamps[slot])
        into.copy_(self.buffers[slot])
        if not before == known == int(self.stamps[slot]):
            raise RingError(f"version {known} was overwritten while it was read")
        return known
