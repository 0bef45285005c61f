"""Arms of ``local_learning`` as its figures name them: a schedule, and what sets a variant of it apart."""

from collections.abc import Iterable

import pandas as pd

BASELINE = "global_backprop"
NAMES = {
    "global_backprop": "global",
    "global_ddp": "data-parallel",
    "global_1f1b": "1F1B pipeline",
    "local_independent": "independent",
    "local_async": "independent, async",
    "rgc_sync": "RGC, sync",
    "rgc_async": "RGC, async",
}
TEXTS = {
    "enwiki": "enwiki slice",
    "enwik8": "enwik8",
    "stories": "children's stories",
    "tinystories": "TinyStories",
}
_SETTINGS = {"stages": "{} stages", "staleness": "staleness {}", "steps": "{} batches"}


def with_arms(table: pd.DataFrame) -> pd.DataFrame:
    """Return quality rows with their axes' values and a column ``shown``: the arm, and its variant's settings.

    An arm whose cell names no setting is shown by its schedule's name alone.
    """
    shown = []
    for _, row in table.iterrows():
        parts = [str(row["arm"])]
        for axis, text in _SETTINGS.items():
            if axis in table and pd.notna(row[axis]):
                parts.append(text.format(row[axis]))
        shown.append(", ".join(parts))
    return table.assign(shown=shown)


def compared(shown: Iterable[str]) -> list[tuple[str, str]]:
    """Return (arm, baseline) for every arm that has one, in the order of ``shown``.

    The baseline of an arm that names a number of batches is global backpropagation over as many, and of others the
    plain one. Global backpropagation itself is compared with nothing.
    """
    present = list(dict.fromkeys(shown))
    pairs = []
    for name in present:
        schedule, _, settings = name.partition(", ")
        lengths = [part for part in settings.split(", ") if part.endswith("batches")]
        base = ", ".join([BASELINE, *lengths])
        if schedule != BASELINE and base in present:
            pairs.append((name, base))
    return pairs


def title(shown: str) -> str:
    """Return the name of an arm from ``shown``."""
    arm, _, settings = shown.partition(", ")
    return f"{NAMES.get(arm, arm)}, {settings}" if settings else NAMES.get(arm, arm)


def speed_title(scope: str) -> str:
    """Return the name of a timed arm from its scope, ``rgc_async_2x1_staleness_0``."""
    arm, _, bound = scope.partition("_staleness_")
    schedule, _, size = arm.rpartition("_")
    named = f"{NAMES.get(schedule, schedule)}, {size.replace('x', ' x ')}"
    return f"{named}, staleness {bound}" if bound else named
