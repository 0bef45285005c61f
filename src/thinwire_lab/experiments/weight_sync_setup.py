"""What both parts of ``weight_sync`` share: the configuration, the model, and one step's questions and settings."""

import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from thinwire.tasks import Arithmetic
from thinwire.train.loop import GrpoSettings
from thinwire.train.rollout import Sampling
from thinwire_lab.config import StudyConfig


class Config(StudyConfig):
    """One run: a training in two processes (``training``), or kept versions over a slow link (``link``)."""

    part: Literal["training", "link"] = Field(description="which of the two measurements")
    arm: Literal["full", "patch"] = Field(default="patch", description="training: what moves, weights or patches")
    model: str = Field(description="asset folder, or a name that transformers can load")
    precision: Literal["fp32_master", "bf16"] = Field(description="storage of the trainer's weights")
    compute: Literal["float32", "bfloat16"] = Field(description="dtype of the forward pass; bfloat16 is autocast")
    lr: float = Field(gt=0, description="AdamW's learning rate")
    warmup: int = Field(ge=0, description="optimizer steps in which the learning rate rises linearly")
    steps: int = Field(ge=1, description="training: optimizer steps, each with one version")
    prompts: int = Field(ge=1, description="questions a step")
    group: int = Field(ge=2, description="answers a question")
    shots: int = Field(ge=0, description="solved sums before each question")
    shares: dict[str, float] = Field(description="kind of sum -> its weight in the mix")
    max_tokens: int = Field(ge=1, description="longest answer, tokens")
    temperature: float = Field(gt=0, description="sampling temperature")
    encoding: str = Field(description="encoding of the patches that move")
    encodings: tuple[str, ...] = Field(description="link: encodings whose payload is reported")
    bits_per_second: float = Field(gt=0, description="link: rate of the shaped link, bit/s, no latency added")
    transfers: int = Field(ge=1, description="link: versions that cross the shaped link, chosen by the seed")
    payloads: int = Field(ge=1, description="link: versions, from the first on, whose payload is reported")
    compute_steps: int = Field(ge=1, description="link: measured rollout and training steps, after one unmeasured")
    published_answers: int = Field(ge=1, description="link: answers of a published batch, to which compute is scaled")


def generator(seed: int, name: str) -> torch.Generator:
    """Return the CPU generator called ``name`` of a run: its own stream for every seed and name."""
    digest = hashlib.sha256(f"weight_sync {name} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def model_source(config: Config, assets: Path) -> str:
    """Return the asset's folder where it exists, else the name for transformers to find."""
    return str(assets / config.model) if (assets / config.model).is_dir() else config.model


def load_model(source: str) -> PreTrainedModel:
    """Load a causal language model with FP32 parameters."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    return model.eval()


def blank_model(source: str) -> PreTrainedModel:
    """Build the architecture alone; its weights are noise until a version is read into it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source), dtype=torch.float32)
    return model.eval()


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer beside the weights."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
    return tokenizer


def task_of(config: Config, seed: int) -> Arithmetic:
    """Return the run's mix of sums with its own shots."""
    return Arithmetic(config.shares, shots=config.shots, generator=generator(seed, "shots"))


def settings_of(config: Config) -> GrpoSettings:
    """Return the trainer's settings."""
    return GrpoSettings(lr=config.lr, warmup=config.warmup, temperature=config.temperature, compute=_dtype(config))


def sampling_of(config: Config) -> Sampling:
    """Return how answers are drawn."""
    return Sampling(max_tokens=config.max_tokens, temperature=config.temperature, compute=_dtype(config))


def _dtype(config: Config) -> torch.dtype:
    dtype: torch.dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.compute]
    return dtype


def digest_number(digest: str) -> float:
    """Return the first 13 hexadecimal digits of a state digest as a number that a double holds exactly."""
    return float(int(digest[:13], 16))


Rows = list[tuple[int, str, float, str]]
"""Step, metric, value, scope: what ``Recorder.record`` takes."""


def row(step: int, metric: str, value: Any, scope: str = "all") -> tuple[int, str, float, str]:
    """Return one row."""
    return step, metric, float(value), scope
