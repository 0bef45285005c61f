"""The harness's configuration, ``configs/config.yaml`` and the study files: frozen types that refuse unknown keys."""

from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

Scale = Literal["smoke", "laptop", "paper"]
Scalar = bool | int | float | str


class ConfigError(ValueError):
    """A configuration file is missing or wrong; the message says where and what would be right."""


class Strict(BaseModel):
    """Base of all configuration: frozen, strict on unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StudyConfig(Strict):
    """Base of the ``Config`` of every experiment."""


class Need(Strict):
    """The versions of another run that a row reads."""

    study: str = Field(description="study that keeps the versions")
    run: dict[str, Scalar] = Field(description="axis values of the run, seed among them")


class Block(Strict):
    """A part of a study's grid: the product of its axes."""

    axes: dict[str, list[Scalar]] = Field(description="axis -> values; `seed` is an axis")
    base: dict[str, Any] = Field(default={}, description="Config values of this block alone")
    threads: int = Field(default=1, ge=1, description="cores a row takes; its processes share them")
    timed: bool = Field(default=False, description="row runs alone on the machine, because a clock judges it")
    gpus: int = Field(default=0, ge=0, description="GPUs that a row asks its scheduler for")
    memory_mb: int = Field(default=6000, ge=500, description="memory that a row asks its scheduler for, MiB")
    minutes: int = Field(default=30, ge=1, description="time limit that a row asks its scheduler for")
    asynchronous: bool = Field(default=False, description="row's order is the machine's: no table of it is repeatable")
    keeps_versions: bool = Field(default=False, description="row fills results/{scale}/versions")
    needs: dict[str, Need] = Field(default={}, description="name -> run whose versions the row reads")
    seconds: float = Field(gt=0, description="expected seconds of a row on a 2-core machine, for the progress estimate")


class Measure(Strict):
    """How the rows of a run become one number."""

    name: str
    metric: str
    scope: str = Field(default="all", description="'*' keeps every scope")
    reduce: Literal["mean", "last", "first", "sum", "min", "max", "median", "gain"]
    from_step: int = Field(default=0, description="earlier steps are left out")
    window: int = Field(default=10, gt=0, description="steps at either end, for `gain`")


class Protocol(Strict):
    """What a comparison of arms fixes before its first run; see :mod:`.preregistration`."""

    claims: list[str] = Field(min_length=1, description="claims that are judged under it")
    measure: str = Field(description="measure that is compared, paired by seed")
    margin: float = Field(gt=0, description="relative, 0.01 is 1 %")
    alpha: float = Field(gt=0, le=0.5, description="one-sided error rate")
    method: Literal["paired-t", "two-way-t", "sign-flip", "percentile", "basic", "bca", "bootstrap-t", "crossed"] = (
        Field(description="of the bound that decides")
    )
    family: Literal["fixed sequence", "co-primary", "holm"] = Field(description="how several data sets are judged")
    data: dict[Scale, list[str]] = Field(description="data sets, in their order")
    seeds: dict[Scale, list[int]] = Field(description="seeds of the pairs that decide, all of them")
    stop: str = Field(description="when the last seed is run")


class Overlay(Strict):
    """What a scale changes: base values are merged, a grid is replaced."""

    base: dict[str, Any] = {}
    grid: list[Block] | None = None
    assets: list[str] | None = Field(default=None, description="replaces the study's assets")


class Study(Strict):
    """A study's file, ``configs/studies/NAME.yaml``."""

    question: str
    experiment: str = Field(description="module of thinwire_lab.experiments; the study's own name")
    assets: list[str] = Field(default=[], description="assets that its runs read: smollm2-135m-instruct, texts")
    base: dict[str, Any]
    grid: list[Block]
    measures: list[Measure]
    protocol: Protocol | None = Field(default=None, description="fixed before the first run, where claims need it")
    scales: dict[Scale, Overlay]

    def at(self, scale: Scale) -> tuple[dict[str, Any], list[Block]]:
        """Base values and grid at a scale."""
        overlay = self.scales.get(scale, Overlay())
        return {**self.base, **overlay.base}, self.grid if overlay.grid is None else overlay.grid

    def assets_at(self, scale: Scale) -> list[str]:
        """Names of the assets that the study's runs read at a scale."""
        chosen = self.scales.get(scale, Overlay()).assets
        return self.assets if chosen is None else chosen


class LabConfig(Strict):
    """``configs/config.yaml``."""

    scale: Scale = Field(description="smoke, laptop or paper")
    studies: list[str] = Field(description="studies that reproduce-all builds")
    searches: list[str] = Field(default=[], description="studies built only by name: choices that others rest on")
    wandb: Literal["disabled", "offline", "online"] = Field(description="mode of the wandb mirror")

    @property
    def planned(self) -> list[str]:
        """Studies that can be built, by ``reproduce-all`` or by name."""
        return [*self.studies, *self.searches]


def _load(path: Path, kind: type[Strict]) -> Any:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from None
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "top level"
        raise ConfigError(f"{path}: {where}: {first['msg']}") from None


def load_study(name: str, configs: Path = Path("configs")) -> Study:
    """Read ``configs/studies/NAME.yaml``. Raises ConfigError."""
    path = configs / "studies" / f"{name}.yaml"
    study: Study = _load(path, Study)
    if study.experiment != name:
        raise ConfigError(f"{path}: experiment: is {study.experiment!r}, must be the file's own name {name!r}")
    return study


def load_config(path: Path = Path("configs/config.yaml")) -> LabConfig:
    """Read the harness's configuration. Raises ConfigError."""
    config: LabConfig = _load(path, LabConfig)
    return config
