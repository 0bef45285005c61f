"""How fast codecs are, as multiples of the time in which ``torch.equal`` reads two equal versions.

In each repeat everything runs once, one after another, so that what slows the machine for a while slows all of it; a
ratio is formed within a repeat, and the median of the ratios stands for the codec. ``torch.equal`` is given equal
copies (on unequal ones it stops at the first difference): it reads every byte of both, which is what any comparison
must.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from thinwire.patch import State, state_digest
from thinwire_lab.experiments.patch_codec_rivals import PUBLISHED, Codec, Step, distinct, public_decode, undo


@dataclass(frozen=True)
class Summary:
    """The median of some repeats, the lowest and the highest."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @property
    def spread(self) -> float:
        """Width from lowest to highest over the median."""
        return (self.high - self.low) / self.median


@dataclass(frozen=True)
class Timing:
    """Bytes of one version's weights a second, a value for each repeat; a slow codec took part in the first few only.

    ``encode`` is compare and encode, ``decode`` is decode and apply in place, by codec; ``public`` is the decoding
    alone of the published payload the way its public implementation does it (empty where that codec is not among the
    codecs).
    """

    equal: list[float]
    digest: list[float]
    public: list[float]
    encode: dict[str, list[float]]
    decode: dict[str, list[float]]

    def over_equal(self, side: dict[str, list[float]], name: str) -> Summary:
        """Return the ratios of a codec of ``encode`` or ``decode`` to ``torch.equal`` in the same repeats."""
        return Summary.of([rate / equal for rate, equal in zip(side[name], self.equal, strict=False)])

    def over_public(self, name: str) -> Summary:
        """Return the ratios of a codec's ``decode`` to ``public`` in the same repeats."""
        return Summary.of([rate / public for rate, public in zip(self.decode[name], self.public, strict=False)])


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _all_equal(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in distinct(a))


def time_codecs(step: Step, state: State, codecs: Sequence[Codec], *, repeats: int, slow_repeats: int) -> Timing:
    """Time every codec that bears whole versions; ``state`` is a copy of the step's base and is one again afterwards.

    Slow codecs run in the first ``slow_repeats`` of the ``repeats``. The step must not know its patch: comparing is
    part of the time. Nothing is warmed up here: every codec should have run once before.
    """
    if step.known is not None:
        raise ValueError("the step knows its patch: its codecs would be timed without the comparison")
    timed = [codec for codec in codecs if codec.reach == "version"]
    patch, full = step.patch(), step.full_bytes
    payloads = [codec.write(step.compared()) for codec in timed if codec.name == PUBLISHED]
    found = Timing([], [], [], {codec.name: [] for codec in timed}, {codec.name: [] for codec in timed})
    for repeat in range(repeats):
        found.equal.append(full / _seconds(partial(_all_equal, step.base, state)))
        found.digest.append(full / _seconds(partial(state_digest, step.base, threads=step.threads)))
        found.public.extend(full / _seconds(partial(public_decode, payload)) for payload in payloads)
        for codec in timed:
            if codec.pace == "slow" and repeat >= slow_repeats:
                continue
            start = time.perf_counter()
            data = codec.write(step)
            found.encode[codec.name].append(full / (time.perf_counter() - start))
            found.decode[codec.name].append(full / _seconds(partial(codec.read, data, state, step)))
            undo(state, step, patch)
    return found
