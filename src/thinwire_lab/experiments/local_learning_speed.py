"""Throughput of schedules on equal cores: arms that take turns in one run, and the ratios that follow from them."""

import itertools
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from thinwire.local import SCHEDULES, Batches, Schedule, TrainingPlan, open_schedule

_WRITTEN = re.compile(r"(?P<schedule>\w+) (?P<workers>[1-9]\d*)x(?P<threads>[1-9]\d*)( staleness=(?P<staleness>\d+))?")


class TimedArm(NamedTuple):
    """A schedule in ``workers`` processes (stages or replicas) of ``threads`` threads; None: the row's staleness."""

    schedule: str
    workers: int
    threads: int
    staleness: int | None = None

    @classmethod
    def parse(cls, written: str) -> "TimedArm":
        """Read ``rgc_async 2x1`` or ``rgc_async 2x1 staleness=0``. Raises ValueError for anything else."""
        found = _WRITTEN.fullmatch(written)
        if found is None:
            raise ValueError(f"{written!r}: a timed arm is written like 'rgc_async 2x1' or 'rgc_async 2x1 staleness=0'")
        if found["schedule"] not in SCHEDULES:
            raise ValueError(f"{written!r}: no schedule {found['schedule']!r}; there are {', '.join(SCHEDULES)}")
        staleness = None if found["staleness"] is None else int(found["staleness"])
        return cls(found["schedule"], int(found["workers"]), int(found["threads"]), staleness)

    @property
    def scope(self) -> str:
        """As in ``rgc_async_2x1`` or ``rgc_async_2x1_staleness_0``."""
        bound = "" if self.staleness is None else f"_staleness_{self.staleness}"
        return f"{self.schedule}_{self.workers}x{self.threads}{bound}"

    @property
    def cores(self) -> int:
        """Threads at work."""
        return self.workers * self.threads


Rates = Mapping[TimedArm, Sequence[float]]
"""Bytes trained a second of each arm, by repeat."""


class SpeedRow(NamedTuple):
    """One number of one repeat."""

    repeat: int
    metric: str
    value: float
    scope: str


def interleaved_rates(
    plans: Mapping[TimedArm, TrainingPlan],
    batches: Batches,
    repeats: int,
    steps: int,
    progress: Callable[[int, int], None],
) -> dict[TimedArm, list[float]]:
    """Time ``steps`` batches of every arm ``repeats`` times, in turn (A B C, B C A, ...), after one untimed round.

    Returns bytes trained a second. ``progress`` gets the rounds that are done, and all.

    A turn begins and ends with idle workers, so filling and emptying a pipeline count against it.
    """
    rows, window = batches(0).shape
    amount = steps * rows * (window - 1)
    running: dict[TimedArm, Schedule] = {}
    rates: dict[TimedArm, list[float]] = {arm: [] for arm in plans}
    try:
        for arm, plan in plans.items():
            running[arm] = open_schedule(arm.schedule, plan, batches)
        order = list(plans)
        for repeat in range(repeats + 1):
            turn = repeat % len(order)
            for arm in order[turn:] + order[:turn]:
                began = time.perf_counter()
                running[arm].advance(steps)
                seconds = time.perf_counter() - began
                if repeat:
                    rates[arm].append(amount / seconds)
            progress(repeat + 1, repeats + 1)
    finally:
        for schedule in running.values():
            schedule.close()
    return rates


def as_rows(rates: Rates, judged: TimedArm) -> Iterator[SpeedRow]:
    """Yield every rate, and the paired ratios of each repeat.

    *gain*: over the ``global_backprop`` of the best median. *gain_over_groups*: local arms over the better of
    ``global_ddp`` and ``global_1f1b``. *lead*: local arms over the best global arm of all. *share_of_limit*: of what
    as many cores as the largest global arm has would reach at the rate of a single thread. *factor*: what each step
    from one thread to the consensus changes (see ``steps_of``). The judged arm's ratios also carry the scope
    ``judged``.
    """
    for arm, values in rates.items():
        for repeat, rate in enumerate(values):
            yield SpeedRow(repeat, "throughput", rate, arm.scope)
    for metric, arm, base, times in _ratios(rates):
        for repeat, (mine, theirs) in enumerate(zip(rates[arm], rates[base], strict=True)):
            yield SpeedRow(repeat, metric, mine / theirs / times, arm.scope)
            if arm == judged:
                yield SpeedRow(repeat, metric, mine / theirs / times, "judged")
    for step, arm, base in steps_of(rates):
        for repeat, (mine, theirs) in enumerate(zip(rates[arm], rates[base], strict=True)):
            yield SpeedRow(repeat, "factor", mine / theirs, step)


def _best(rates: Rates, schedules: Sequence[str]) -> TimedArm | None:
    of_them = [arm for arm in rates if arm.schedule in schedules]
    return max(of_them, key=lambda arm: statistics.median(rates[arm]), default=None)


def baselines(rates: Rates) -> dict[str, TimedArm]:
    """Return the arm of the best median of each kind that was timed.

    ``best_backprop`` is the base of *gain*, ``best_group`` of *gain_over_groups*, ``best_global`` of *lead*.
    """
    groups = ["global_ddp", "global_1f1b"]
    kinds = {
        "best_backprop": ["global_backprop"],
        "best_group": groups,
        "best_global": ["global_backprop", *groups],
    }
    best = {name: _best(rates, schedules) for name, schedules in kinds.items()}
    return {name: arm for name, arm in best.items() if arm is not None}


def _ratios(rates: Rates) -> Iterator[tuple[str, TimedArm, TimedArm, float]]:
    single = TimedArm("global_backprop", 1, 1)
    base = baselines(rates)
    cores = max((arm.cores for arm in rates if arm.schedule.startswith("global_")), default=1)
    for arm in rates:
        is_local = not arm.schedule.startswith("global_")
        if "best_backprop" in base:
            yield "gain", arm, base["best_backprop"], 1.0
        if "best_group" in base and is_local:
            yield "gain_over_groups", arm, base["best_group"], 1.0
        if "best_global" in base and is_local:
            yield "lead", arm, base["best_global"], 1.0
        if single in rates:
            yield "share_of_limit", arm, single, float(cores)


def steps_of(rates: Rates) -> Iterator[tuple[str, TimedArm, TimedArm]]:
    """Yield the steps from one thread of global backpropagation to the consensus: name, arm, the arm before it.

    *threads*: more threads in the one group; *groups*: the largest ``global_ddp``, small groups as replicas of the
    whole model; *locking*: the groups are stages, and no gradient comes back from later ones; *readout*: the stages
    share one readout (the first ``rgc_async`` of as many). A step whose arms were not timed is left out.
    """
    single = TimedArm("global_backprop", 1, 1)
    groups = max((arm for arm in rates if arm.schedule == "global_ddp"), key=lambda arm: arm.cores, default=None)
    wide = max((arm for arm in rates if arm.schedule == "global_backprop"), key=lambda arm: arm.cores, default=None)
    chain: list[tuple[str, TimedArm | None]] = [("", single), ("threads", wide), ("groups", groups)]
    if groups is not None:
        chain.append(("locking", groups._replace(schedule="local_async")))
        stages = (arm for arm in rates if arm.schedule == "rgc_async" and arm[1:3] == groups[1:3])
        chain.append(("readout", next(stages, None)))
    for (_, base), (name, arm) in itertools.pairwise(chain):
        if arm in rates and base in rates and arm != base:
            assert arm is not None
            assert base is not None
            yield name, arm, base
