"""What both tasks of the study share: the configuration, one trainer's loop over rounds, and what it writes down."""

import sys
import time
from abc import ABC, abstractmethod
from typing import Literal, Self

import torch
from blake3 import blake3
from pydantic import Field, model_validator

from thinwire.outer import DDP, DiLoCo, Exchange, PulseLoCo, Strategy, Traffic
from thinwire.train.weights import Weights
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.versions import digest_number

Reading = tuple[int, str, float]
"""Round, metric, value of one trainer."""

SAY_SECONDS = 10.0
"""Least time between two lines of progress."""


class Config(StudyConfig):
    """One run: a task, an arm, and the sizes of both."""

    task: Literal["base", "text", "grpo"] = Field(
        description="base: train the byte model that `text` rows start from; text: go on on another text; grpo: RL"
    )
    arm: Literal["ddp", "diloco", "pulseloco"] = Field(description="how the trainers keep one set of weights")
    trainers: int = Field(ge=1, description="R, processes with one thread each")
    inner_steps: int = Field(ge=1, description="H, optimizer steps of a round")
    steps: int = Field(ge=1, description="optimizer steps of each trainer in all; a multiple of H unless arm is ddp")
    lr: float = Field(gt=0, description="learning rate of the inner AdamW (base: unused, its recipe has its own)")
    outer_lr: float = Field(default=0.7, gt=0, description="learning rate of the outer SGD")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="Nesterov momentum of the outer SGD")
    compute: Literal["float32", "bfloat16"] = Field(default="float32", description="dtype of the forward pass")

    corpus: str = Field(default="enwiki", description="base, text: folder below texts/ to train and validate on")
    blocks: int = Field(default=4, ge=1, description="base, text: blocks of the byte model")
    width: int = Field(default=48, ge=2, description="base, text: its width")
    heads: int = Field(default=4, ge=1, description="base, text: its heads")
    context: int = Field(default=128, ge=2, description="base, text: bytes of a sequence")
    batch: int = Field(default=4, ge=1, description="base, text: sequences of a trainer's step")
    validate_every: int = Field(default=10, ge=1, description="base, text: rounds between held-out losses")
    held_out: int = Field(default=128, ge=1, description="base, text: validation sequences of `context` bytes")

    model: str = Field(default="smollm2-135m-instruct", description="grpo: asset folder, or a name or path")
    questions: Literal["arithmetic", "math", "gsm8k"] = Field(default="arithmetic", description="grpo: their source")
    kinds: dict[str, float] = Field(default={}, description="grpo, arithmetic: kind of sum -> its weight in the mix")
    shots: int = Field(default=4, ge=0, description="grpo, arithmetic: solved sums before each question")
    prompts: int = Field(default=4, ge=1, description="grpo: questions of a trainer's step")
    group: int = Field(default=8, ge=2, description="grpo: answers a question")
    max_tokens: int = Field(default=4, ge=1, description="grpo: longest answer, tokens")
    temperature: float = Field(default=1.0, gt=0, description="grpo: sampling temperature")
    prompts_at_once: int = Field(default=0, ge=0, description="grpo: questions sampled together, 0 for all")
    samples_at_once: int = Field(default=0, ge=0, description="grpo: answers in one backward pass, 0 for all")
    device: str = Field(default="cpu", description="grpo: torch device; trainer r takes cuda:r of cuda")

    @model_validator(mode="after")
    def _whole_rounds(self) -> Self:
        if self.arm != "ddp" and self.steps % self.inner_steps:
            raise ValueError(
                f"steps {self.steps} is no multiple of inner_steps {self.inner_steps}: a round would be cut"
            )
        return self


def named_generator(seed: int, name: str) -> torch.Generator:
    """A generator of its own for each use: the same seed and name give the same numbers, another name others."""
    return torch.Generator().manual_seed(int.from_bytes(blake3(f"{seed} {name}".encode()).digest(7), "little"))


class Trainer(ABC):
    """One trainer's side of a task: weights, gradients, optimizer, and what is measured at the end of a round."""

    weights: Weights

    @abstractmethod
    def backward(self, step: int) -> None:
        """Leave the gradients of 0-based inner ``step`` in ``weights.stored``."""

    @abstractmethod
    def update(self, step: int) -> None:
        """Take the optimizer's step with the gradients that are there."""

    @abstractmethod
    def measure(self, round: int, *, validate: bool) -> list[Reading]:
        """Readings of a round that has just ended (0: before the first), with the shared weights in the model.

        ``validate`` asks for the held-out loss as well.
        """


def make_strategy(config: Config, weights: Weights, exchange: Exchange) -> Strategy:
    """The arm's strategy over the FP32 master weights."""
    parameters = dict(weights.stored)
    if config.arm == "ddp":
        return DDP(parameters, exchange)
    kind = DiLoCo if config.arm == "diloco" else PulseLoCo
    return kind(
        parameters, exchange, inner_steps=config.inner_steps, outer_lr=config.outer_lr, momentum=config.momentum
    )


def drive(config: Config, trainer: Trainer, exchange: Exchange) -> list[Reading]:
    """Train ``config.steps`` steps and return what this trainer measured, by round.

    A round of the arm ddp is H steps for the books; where the run is shorter, its bytes are scaled to H steps (every
    step sends the same number). After each round the state digest must be the same on all trainers.
    """
    torch.use_deterministic_algorithms(True)
    strategy = make_strategy(config, trainer.weights, exchange)
    readings = trainer.measure(0, validate=True)
    said = time.monotonic()
    for round, start in enumerate(range(0, config.steps, config.inner_steps), start=1):
        steps = range(start, min(start + config.inner_steps, config.steps))
        readings += [(round, metric, value) for metric, value in _round(config, trainer, strategy, steps).items()]
        trainer.weights.refresh()
        readings.append((round, "state_digest", digest_number(strategy.check_agreement())))
        last = steps.stop == config.steps
        readings += trainer.measure(round, validate=last or round % config.validate_every == 0)
        if exchange.rank == 0 and (last or time.monotonic() - said > SAY_SECONDS):
            said = time.monotonic()
            print(f"outer_rounds {config.task} {config.arm}: step {steps.stop} of {config.steps}", file=sys.stderr)
    return readings


def _round(config: Config, trainer: Trainer, strategy: Strategy, steps: range) -> dict[str, float]:
    """Take the steps of one round and return what its exchanges moved, by metric."""
    outcomes, seconds = [], 0.0
    for step in steps:
        trainer.backward(step)
        began = time.monotonic()
        strategy.average_gradients()
        seconds += time.monotonic() - began
        trainer.update(step)
        began = time.monotonic()
        outcome = strategy.finish_step()
        seconds += time.monotonic() - began
        if outcome is not None:
            outcomes.append(outcome)
    traffic = sum((outcome.traffic for outcome in outcomes), Traffic())
    whole = config.inner_steps / len(steps)
    dense = 4 * strategy.total
    return {
        "round_bytes": traffic.payload * whole,
        "round_link_bytes": traffic.link * whole,
        "sent_share": sum(outcome.density for outcome in outcomes) / len(outcomes),
        "diloco_over_sent": dense / (traffic.payload * whole),
        "ddp_over_sent": dense * config.inner_steps / (traffic.payload * whole),
        "exchange_seconds": seconds,
    }
