"""The RL task: GRPO on sums with checkable answers, R trainers with questions of their own.

Answers are sampled from the shared weights, as a rollout worker would that hears of a new version only when all
trainers agree on one: at every step with DDP, once a round with DiLoCo and PULSELoCo. The inner steps after the first
are then off the sampling policy, and the clipped ratio corrects for it.
"""

from pathlib import Path

import torch
from transformers.utils import logging

from thinwire.outer import join
from thinwire.pretrained import load_causal_lm, load_tokenizer
from thinwire.train.loop import GrpoSettings, GrpoTrainer
from thinwire.train.rollout import Rollouts, Sampling, collect
from thinwire.train.weights import MasterWeights
from thinwire_lab.experiments.grpo_inputs import make_task, model_source
from thinwire_lab.experiments.outer_rounds_trainer import Config, Reading, Trainer, drive, named_generator


class RlTrainer(Trainer):
    """GRPO on FP32 master weights."""

    def __init__(self, config: Config, rank: int, seed: int, assets: Path) -> None:
        """Load the model; the solved sums before the questions are the same everywhere."""
        self.config = config
        model = model_source(config.model, assets)
        self.tokenizer = load_tokenizer(model)
        device = f"cuda:{rank}" if config.device == "cuda" else config.device
        compute = getattr(torch, config.compute)
        self.weights = MasterWeights(load_causal_lm(model, device=device))
        settings = GrpoSettings(
            lr=config.lr,
            temperature=config.temperature,
            on_policy=config.arm == "ddp",
            compute=compute,
            samples_at_once=config.samples_at_once,
        )
        self.trainer = GrpoTrainer(self.weights, settings)
        self.sampling = Sampling(
            max_tokens=config.max_tokens,
            temperature=config.temperature,
            prompts_at_once=config.prompts_at_once,
            compute=compute,
        )
        self.task = make_task(
            config.questions,
            config.kinds,
            shots=config.shots,
            generator=named_generator(seed, "solved sums"),
            tokenizer=self.tokenizer,
            assets=assets,
        )
        self.asking = named_generator(seed, f"questions of trainer {rank}")
        self.drawing = named_generator(seed, f"answers of trainer {rank}")
        self.waiting: list[Rollouts] = []
        self.rewards: list[float] = []
        self.losses: list[float] = []
        self.taught: list[float] = []

    def _sample(self, steps: int) -> list[Rollouts]:
        """Answers for ``steps`` inner steps, all from the weights as they are now."""
        config = self.config
        questions = self.task.draw(steps * config.prompts, self.asking)
        whole = collect(
            self.trainer.model,
            self.tokenizer,
            self.task,
            questions,
            group=config.group,
            sampling=self.sampling,
            generator=self.drawing,
        )
        return [_part(whole, start, config.prompts) for start in range(0, len(questions), config.prompts)]

    def backward(self, step: int) -> None:
        """Sample when nothing is left of the shared weights' answers, and leave the next step's gradients."""
        if not self.waiting:
            self.waiting = self._sample(1 if self.config.arm == "ddp" else self.config.inner_steps)
        rollouts = self.waiting.pop(0)
        loss, taught = self.trainer.backward(rollouts)
        self.rewards.append(float(rollouts.rewards.mean()))
        self.losses.append(loss)
        self.taught.append(float(taught))

    def update(self, step: int) -> None:
        """Step, unless no trainer that these gradients come from had an advantage."""
        if any(bool(p.grad.any()) for p in self.weights.stored.values() if p.grad is not None):
            self.trainer.update()

    def measure(self, round: int, *, validate: bool) -> list[Reading]:
        """Mean reward and loss over the steps of the round; nothing before the first."""
        if not round:
            return []
        readings = [
            (round, metric, sum(values) / len(values))
            for metric, values in (
                ("reward", self.rewards),
                ("loss", self.losses),
                ("has_advantage", self.taught),
            )
        ]
        for values in (self.rewards, self.losses, self.taught):
            values.clear()
        return readings


def _part(whole: Rollouts, start: int, prompts: int) -> Rollouts:
    rows = slice(start * whole.group, (start + prompts) * whole.group)
    return Rollouts(
        whole.prompts[start : start + prompts],
        whole.completions[rows],
        whole.mask[rows],
        whole.logprobs[rows],
        whole.rewards[rows],
        whole.group,
    )


def train_grpo(rank: int, rendezvous: str, config: Config, seed: int, assets: Path) -> list[Reading]:
    """One trainer process: its readings."""
    logging.disable_progress_bar()
    with join(rank, config.trainers, rendezvous, interface="lo") as exchange:
        return drive(config, RlTrainer(config, rank, seed, assets), exchange)
