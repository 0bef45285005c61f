"""Computed, not measured: what the rates of a small machine would say of one with more cores.

A batch of global backpropagation takes serial + parallel / t seconds on t threads (Amdahl's law), fitted through the
rates of one thread and of the widest group. Stages share the work evenly, each a group of its own: their rate is that
of one group on 1 / K of the work, times the efficiency that the stages showed against that ideal on the small machine.
Replicas are taken likewise, with an efficiency of their own. Memory bandwidth, sockets and frequency limits are not in
it, nor that four workers may waste more than two: rates are too high, and a ratio of two of them may err either way.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fitted:
    """Seconds a byte: ``serial`` that more threads do not shorten, ``parallel`` that they divide."""

    serial: float
    parallel: float

    def rate(self, threads: int, share: float = 1.0) -> float:
        """Bytes a second of one group of ``threads`` threads that does ``share`` of the model's work."""
        return 1.0 / (share * (self.serial + self.parallel / threads))


def fit(one_thread: float, wide: float, threads: int) -> Fitted:
    """Fit through the rates, bytes a second, of one thread and of ``threads`` threads.

    A wide group that is slower than one thread, or more than ``threads`` times as fast, counts as as fast, or as
    ``threads`` times as fast. Raises ValueError for fewer than two threads or rates that are not positive.
    """
    if threads < 2 or min(one_thread, wide) <= 0:
        raise ValueError(f"a fit needs two or more threads and positive rates, got {threads}, {one_thread}, {wide}")
    one, many = 1.0 / one_thread, 1.0 / wide
    parallel = min(max((one - many) * threads / (threads - 1), 0.0), one)
    return Fitted(serial=one - parallel, parallel=parallel)


def ratio_of_stages(fitted: Fitted, efficiency: float, *, stages: int, threads: int, global_threads: int) -> float:
    """Return how many times as fast ``stages`` groups of ``threads`` would be as one group of ``global_threads``.

    ``efficiency`` is the measured rate of the stages (or replicas) over that of as many ideal groups (1 is ideal).
    """
    return efficiency * fitted.rate(threads, 1.0 / stages) / fitted.rate(global_threads)
