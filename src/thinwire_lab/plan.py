"""From study files to rows: what runs, with which values, after which other runs.

A row is one run: a point of the grid with its seed. Its name is read off the grid (``lr=3e-06,precision=bf16,seed=0``),
so that the same name always means the same inputs and no clock enters it.
"""

import itertools
import re
from pathlib import Path
from typing import Any

from pydantic import Field

from thinwire_lab.config import Block, ConfigError, Need, Scalar, Scale, Strict, load_study

_SAFE = re.compile(r"[A-Za-z0-9_.+-]+")


class Row(Strict):
    """One run of a study, resolved."""

    study: str
    scale: Scale
    run: str = Field(description="axis=value,...,seed=n")
    cell: str = Field(description="the same without the seed")
    seed: int
    config: dict[str, Any] = Field(description="values of the experiment's Config, seed left out")
    threads: int
    timed: bool
    gpus: int
    memory_mb: int
    minutes: int
    asynchronous: bool
    keeps_versions: bool
    needs: dict[str, tuple[str, str]] = Field(description="name -> (study, run) whose versions are read")
    seconds: float


def name_of(values: dict[str, Scalar]) -> str:
    """``axis=value,axis=value`` in the order given; floats by ``repr``. Raises ConfigError if no path can hold it."""
    parts = []
    for axis, value in values.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)  # str of a float is its repr
        if not _SAFE.fullmatch(text) or not _SAFE.fullmatch(axis):
            raise ConfigError(f"axis {axis}={text!r}: only letters, digits and _ . + - can stand in a run's name")
        parts.append(f"{axis}={text}")
    return ",".join(parts)


def _rows_of_block(study: str, scale: Scale, base: dict[str, Any], block: Block) -> list[Row]:
    if "seed" not in block.axes:
        raise ConfigError(f"configs/studies/{study}.yaml: grid: a block has no axis `seed`")
    axes = [axis for axis in block.axes if axis != "seed"] + ["seed"]
    rows = []
    for point in itertools.product(*(block.axes[axis] for axis in axes)):
        values = dict(zip(axes, point, strict=True))
        cell = name_of({axis: value for axis, value in values.items() if axis != "seed"})
        seed = values.pop("seed")
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ConfigError(f"configs/studies/{study}.yaml: grid: seed {seed!r} is not a whole number")
        rows.append(
            Row(
                study=study,
                scale=scale,
                run=f"{cell},seed={seed}" if cell else f"seed={seed}",
                cell=cell,
                seed=seed,
                config={**base, **block.base, **values},
                threads=block.threads,
                timed=block.timed,
                gpus=block.gpus,
                memory_mb=block.memory_mb,
                minutes=block.minutes,
                asynchronous=block.asynchronous,
                keeps_versions=block.keeps_versions,
                needs={name: (need.study, _needed(need)) for name, need in block.needs.items()},
                seconds=block.seconds,
            )
        )
    return rows


def _needed(need: Need) -> str:
    axes = {axis: value for axis, value in need.run.items() if axis != "seed"}
    return name_of({**axes, "seed": need.run["seed"]}) if "seed" in need.run else name_of(axes)


def plan_study(study: str, scale: Scale, configs: Path = Path("configs")) -> list[Row]:
    """All rows of a study at a scale, in the order of the grid.

    Raises ConfigError for a bad file, for two rows of one name and for a name that no path can hold.
    """
    base, blocks = load_study(study, configs).at(scale)
    rows = [row for block in blocks for row in _rows_of_block(study, scale, base, block)]
    seen: set[str] = set()
    for row in rows:
        if row.run in seen:
            raise ConfigError(f"configs/studies/{study}.yaml: {scale}: two rows are named {row.run}")
        seen.add(row.run)
    return rows


def plan_all(studies: list[str], scale: Scale, configs: Path = Path("configs")) -> dict[str, list[Row]]:
    """The rows of several studies; checks that what a row needs is planned and kept. Raises ConfigError."""
    plan = {study: plan_study(study, scale, configs) for study in studies}
    kept = {(row.study, row.run) for rows in plan.values() for row in rows if row.keeps_versions}
    for row in (row for rows in plan.values() for row in rows):
        for study, run in row.needs.values():
            if (study, run) not in kept:
                raise ConfigError(f"{row.study} {row.run} needs the versions of {study} {run}, which no row keeps")
    return plan
