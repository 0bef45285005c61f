"""What both parts of ``weight_sync`` share: the configuration, the model, and one step's questions and settings."""

import hashlib
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from thinwire.pretrained import blank_causal_lm, load_causal_lm
from thinwire.tasks import Task
from thinwire.train.loop import GrpoSettings
from thinwire.train.rollout import Sampling
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.grpo_inputs import make_task


class Config(StudyConfig):
    """One run: a training in two processes (``training``), or kept versions over a slow link (``link``)."""

    part: Literal["training", "link"] = Field(description="which of the two measurements")
    arm: Literal["full", "patch"] = Field(default="patch", description="training: what moves, weights or patches")
    model: str = Field(description="asset folder, or a name or path for transformers")
    precision: Literal["fp32_master", "bf16"] = Field(description="storage of the trainer's weights")
    compute: Literal["float32", "bfloat16"] = Field(description="dtype of the model's arithmetic")
    device: str = Field(description="torch device of trainer and worker")
    lr: float = Field(gt=0, description="AdamW's learning rate after the warm-up")
    warmup: int = Field(ge=0, description="optimizer steps in which the learning rate rises linearly")
    steps: int = Field(ge=1, description="training: optimizer steps, each of which makes a version")
    task: Literal["arithmetic", "math", "gsm8k"] = Field(description="where the questions come from")
    kinds: dict[str, float] = Field(description="arithmetic: kind of sum -> its weight in the mix")
    shots: int = Field(ge=0, description="arithmetic: solved sums before each question")
    prompts: int = Field(ge=1, description="questions a step")
    group: int = Field(ge=2, description="answers a question")
    max_tokens: int = Field(ge=1, description="longest answer, tokens")
    temperature: float = Field(gt=0, description="sampling temperature")
    prompts_at_once: int = Field(default=0, ge=0, description="questions that are sampled together, 0 for all")
    samples_at_once: int = Field(default=0, ge=0, description="answers in one backward pass, 0 for all")
    encoding: str = Field(description="encoding of the patches that move")
    encodings: tuple[str, ...] = Field(description="link: encodings whose payload is reported")
    bits_per_second: float = Field(gt=0, description="link: rate of the shaped link, bit/s, no latency added")
    transfers: int = Field(ge=1, description="link: kept versions that cross the shaped link")
    compute_steps: int = Field(ge=1, description="link: measured rollout and training steps, after one unmeasured")
    published_answers: int = Field(ge=1, description="link: answers of a published batch, to which compute is scaled")


def generator(seed: int, name: str) -> torch.Generator:
    """Return the CPU generator called ``name`` of a run: its own stream for every seed and name."""
    digest = hashlib.sha256(f"weight_sync {name} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def load_model(config: Config, source: str) -> PreTrainedModel:
    """Load the model that the trainer starts from."""
    return load_causal_lm(source, dtype=getattr(torch, config.compute), device=config.device)


def blank_model(config: Config, source: str) -> PreTrainedModel:
    """Build the architecture that a version is read into."""
    return blank_causal_lm(source, dtype=getattr(torch, config.compute), device=config.device)


def task_of(config: Config, seed: int, tokenizer: PreTrainedTokenizerBase, assets: Path) -> Task:
    """Return the task; an arithmetic mix has shots of the seed's own."""
    shots = generator(seed, "shots")
    return make_task(config.task, config.kinds, shots=config.shots, generator=shots, tokenizer=tokenizer, assets=assets)


def settings_of(config: Config) -> GrpoSettings:
    """Return the trainer's settings."""
    return GrpoSettings(
        lr=config.lr,
        warmup=config.warmup,
        temperature=config.temperature,
        samples_at_once=config.samples_at_once,
    )


def sampling_of(config: Config) -> Sampling:
    """Return how answers are drawn."""
    return Sampling(
        max_tokens=config.max_tokens, temperature=config.temperature, prompts_at_once=config.prompts_at_once
    )


Rows = list[tuple[int, str, float, str]]
"""Step, metric, value, scope: what ``Recorder.record`` takes."""


def row(step: int, metric: str, value: float, scope: str = "all") -> tuple[int, str, float, str]:
    """Return one row."""
    return step, metric, float(value), scope
