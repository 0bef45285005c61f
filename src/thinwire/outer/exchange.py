"""How trainers exchange tensors and payloads, with every byte counted.

Two operations are enough. ``mean_`` averages a dense tensor over all trainers; ``gather`` gives every trainer the
payload of every other. Both are deterministic at any number of trainers: sums run in the order of the ranks, whatever
order the network delivers in, so all trainers hold the same bits afterwards and a second run holds them again.

Bytes are counted twice, because two questions are asked. ``payload`` is what one trainer has to say, counted once: a
dense FP32 tensor is 4 bytes an element, a sparse payload is its length and the 8 bytes that announce it. ``link`` is
what this trainer then put on its own link so that all others hear it: 2 (R - 1) / R times the payload for the dense
mean (a reduce-scatter and an all-gather, as much as a ring moves), R - 1 times for the gather. Headers of TCP and of
gloo are not counted.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_BUCKET = 1 << 24  # elements summed at a time: a receive buffer of 64 MiB


class ExchangeError(RuntimeError):
    """Trainers do not agree, or one sent what cannot be; the message names the ranks."""


@dataclass(frozen=True)
class Traffic:
    """Bytes of one trainer: ``payload`` counted once, ``link`` as sent to the other trainers."""

    payload: int = 0
    link: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":
        """Add both counts."""
        return Traffic(self.payload + other.payload, self.link + other.link)


class Exchange:
    """The trainers of one process group, or one trainer alone (``group`` None)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """Take rank and size from ``group``, whose backend must move CPU tensors (gloo)."""
        self._group = group
        self.rank: int = 0 if group is None else dist.get_rank(group)
        self.size: int = 1 if group is None else dist.get_world_size(group)

    def mean_(self, tensor: torch.Tensor) -> Traffic:
        """Replace a contiguous float32 ``tensor`` by its mean over the trainers, (0 + x_0 + x_1 + ...) / R.

        All trainers must call it with tensors of one shape. Raises ValueError for another dtype or memory layout.
        """
        if tensor.dtype != torch.float32 or not tensor.is_contiguous():
            raise ValueError(f"the mean is taken of contiguous float32 tensors, not of {tensor.dtype}")
        flat = tensor.view(-1)
        buckets = torch.split(flat, _BUCKET)
        sent = sum(self._mean_bucket(bucket) for bucket in buckets)
        return Traffic(payload=4 * flat.numel(), link=4 * sent)

    def _mean_bucket(self, bucket: torch.Tensor) -> int:
        shards = [len(shard) for shard in bucket.tensor_split(self.size)]
        mine = shards[self.rank]
        if self._group is None:
            received = bucket
        else:
            received = bucket.new_empty(mine * self.size)
            dist.all_to_all_single(received, bucket, [mine] * self.size, shards, group=self._group)
        mean = torch.zeros_like(received[:mine])
        for part in received.view(self.size, mine):
            mean += part
        mean /= self.size
        if self._group is None:
            bucket.copy_(mean)
        else:
            dist.all_to_all_single(bucket, mean.repeat(self.size), shards, [mine] * self.size, group=self._group)
        return len(bucket) - mine + mine * (self.size - 1)

    def gather(self, payload: bytes, limit: int) -> tuple[list[bytes], Traffic]:
        """Return the payloads of all trainers in the order of their ranks; no padding is sent.

        ``limit`` bounds the bytes that any trainer may announce. Raises ExchangeError above it.
        """
        traffic = Traffic(payload=8 + len(payload), link=(self.size - 1) * (8 + len(payload)))
        if self._group is None:
            return [payload], traffic
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(lengths, torch.tensor([len(payload)]), group=self._group)
        sizes = [int(length) for length in lengths]
        for rank, size in enumerate(sizes):
            if not 0 <= size <= limit:
                raise ExchangeError(f"trainer {rank} announces a payload of {size} bytes; at most {limit} are possible")
        mine = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else torch.empty(0, dtype=torch.uint8)
        buffers = [mine if r == self.rank else torch.empty(size, dtype=torch.uint8) for r, size in enumerate(sizes)]
        pending = []
        for rank in (r for r in range(self.size) if r != self.rank):
            if sizes[rank]:
                pending.append(dist.irecv(buffers[rank], group=self._group, group_src=rank))
            if payload:
                pending.append(dist.isend(mine, group=self._group, group_dst=rank))
        for work in pending:
            if work is not None:
                work.wait()
        return [buffer.numpy().tobytes() for buffer in buffers], traffic

    def agree(self, what: str, value: str) -> None:
        """Check that all trainers hold the same ``value`` (at most 256 bytes of UTF-8), which ``what`` names.

        A check, not part of the method: its bytes are not counted. Raises ExchangeError on every trainer otherwise.
        """
        data = value.encode()
        if len(data) > 256:
            raise ValueError(f"{what}: agreement is checked on at most 256 bytes, not {len(data)}; send a digest")
        gathered, _ = self.gather(data, 256)
        differing = [rank for rank, other in enumerate(gathered) if other != gathered[0]]
        if differing:
            raise ExchangeError(
                f"{what}: trainer {differing[0]} holds {gathered[differing[0]].decode()} and trainer 0 holds "
                f"{gathered[0].decode()}; all trainers must start alike and see every round"
            )


@contextmanager
def join(
    rank: int, size: int, rendezvous: str, *, interface: str | None = None, timeout: float = 1800
) -> Iterator[Exchange]:
    """Join ``size`` trainers over gloo as ``rank`` and yield their Exchange; leave the group at the end.

    ``rendezvous`` is a torch.distributed init method (``file:///path`` that does not exist yet, or
    ``tcp://host:port``), ``interface`` the network interface (``lo`` when all trainers share a machine), ``timeout`` in
    seconds for every exchange.
    """
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=size, timeout=timedelta(seconds=timeout)
    )
    try:
        yield Exchange(dist.group.WORLD)
    finally:
        dist.destroy_process_group()
