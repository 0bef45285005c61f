"""From what a reader has (arrays or tidy frames) to paired log-ratios, or a refusal in one sentence.

The seed is the unit of replication: row ``i`` of both arms was trained from the same seed. Segments of the evaluation
text stand in the second axis. They are no replicates of training, so they never raise ``n``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Data = Sequence[float] | Sequence[Sequence[float]] | Floats | pd.DataFrame


@dataclass(frozen=True)
class Pairs:
    """Positive values of both arms, each [seeds, segments]; data without segments have one."""

    baseline: Floats
    candidate: Floats

    @property
    def n(self) -> int:
        """Seed pairs."""
        return int(self.baseline.shape[0])

    def log_ratios(self, lower_is_better: bool) -> Floats:
        """Log-ratio of the arms' means over segments, by seed, [seeds]; positive where the candidate is worse."""
        return _worse(self.baseline.mean(axis=1), self.candidate.mean(axis=1), lower_is_better)

    def by_block(self, lower_is_better: bool, block: int) -> Floats:
        """Log-ratios [seeds, blocks], each of the means over ``block`` adjacent segments.

        Neighbouring pieces of a text resemble each other, and means of long blocks hardly do. Raises ValueError where
        the segments can't be cut into at least two whole blocks.
        """
        seeds, segments = self.baseline.shape
        if block < 1 or segments % block or segments // block < 2:
            raise ValueError(
                f"{segments} segment(s) can't be cut into blocks of {block}: seeds x segments with at least two whole "
                "blocks are needed"
            )
        shape = (seeds, segments // block, block)
        first, second = (arm.reshape(shape).mean(axis=2) for arm in (self.baseline, self.candidate))
        return _worse(first, second, lower_is_better)


def _worse(baseline: Floats, candidate: Floats, lower_is_better: bool) -> Floats:
    ratios: Floats = np.log(candidate / baseline) if lower_is_better else np.log(baseline / candidate)
    return ratios


def _from_frame(frame: pd.DataFrame, which: str) -> pd.DataFrame:
    """Seeds x segments, from a tidy frame."""
    columns = [name for name in ("seed", "segment", "value") if name in frame.columns]
    if "seed" not in columns or "value" not in columns:
        raise ValueError(f"{which}: a frame needs the columns seed, segment and value, got {list(frame.columns)}")
    tidy = frame[columns] if "segment" in columns else frame[columns].assign(segment=0)
    doubled = list(tidy.loc[tidy.duplicated(["seed", "segment"]), "seed"])
    if doubled:
        raise ValueError(f"{which}: seed {doubled[0]} stands twice with the same segment")
    return tidy.pivot_table(index="seed", columns="segment", values="value", dropna=False, sort=True)


def _as_array(data: Data, which: str) -> Floats:
    array = np.asarray(data, dtype=np.float64)
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"{which}: must be one-dimensional (seeds) or seeds x segments, got shape {array.shape}")
    return array


def paired(baseline: Data, candidate: Data) -> Pairs:
    """Pair two arms: arrays by position, frames by seed and segment.

    Raises ValueError for whatever can't be paired or has no logarithm.
    """
    if isinstance(baseline, pd.DataFrame) != isinstance(candidate, pd.DataFrame):
        raise ValueError("baseline and candidate must both be frames or both be arrays")
    if isinstance(baseline, pd.DataFrame) and isinstance(candidate, pd.DataFrame):
        left, right = _from_frame(baseline, "baseline"), _from_frame(candidate, "candidate")
        if not left.index.equals(right.index):
            raise ValueError(f"the arms have different seeds: {list(left.index)} and {list(right.index)}")
        if not left.columns.equals(right.columns):
            raise ValueError("the arms were scored on different segments")
        first, second = left.to_numpy(dtype=np.float64), right.to_numpy(dtype=np.float64)
    else:
        first, second = _as_array(baseline, "baseline"), _as_array(candidate, "candidate")
    if first.shape != second.shape:
        raise ValueError(f"unequal lengths: baseline has shape {first.shape}, candidate {second.shape}")
    for which, array in (("baseline", first), ("candidate", second)):
        if not np.isfinite(array).all():
            raise ValueError(f"{which}: a value is missing or not finite")
        if (array <= 0).any():
            first_bad = array[array <= 0].flat[0]
            raise ValueError(f"{which}: the value {first_bad} is not positive, a ratio needs positive values")
    if first.ndim == 1:
        return Pairs(first[:, None], second[:, None])
    return Pairs(first, second)


def log_limit(margin: float, lower_is_better: bool = True) -> float:
    """The margin on the log-ratio scale: log(1 + margin), or -log(1 - margin) where higher is better.

    Raises ValueError for a margin that is not positive, or where higher is better not below 1.
    """
    if not 0 < margin < (math.inf if lower_is_better else 1):
        raise ValueError(f"margin {margin} must be positive{'' if lower_is_better else ' and below 1'}")
    return math.log1p(margin) if lower_is_better else -math.log1p(-margin)


def check_alpha(alpha: float) -> None:
    """Raise ValueError unless ``alpha`` is a one-sided error rate in (0, 0.5]."""
    if not 0 < alpha <= 0.5:
        raise ValueError(f"alpha {alpha} must lie above 0 and at most at 0.5")


def percent_worse(log_ratio: float, lower_is_better: bool) -> float:
    """A log-ratio as "percent worse than the baseline"."""
    return 100 * math.expm1(log_ratio) if lower_is_better else -100 * math.expm1(-log_ratio)
