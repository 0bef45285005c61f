"""How few weights a step of reinforcement learning changes, in the BF16 values that the next forward pass reads.

GRPO on a pretrained model; after every optimizer step the published state is compared, as bits, with the states 1, 2,
4 and 8 steps before. S_k compares the two end points: a weight that moved and came back counts as unchanged
(definition of S_k, arXiv 2602.03839). The optimizer steps an FP32 master or the BF16 weights themselves
(``thinwire.train.weights``).

Runs of one seed share shots and questions, whatever their precision and learning rate.
"""

import time
from collections import deque
from typing import Literal, TypeAlias

import torch
from pydantic import Field

from thinwire.patch import State, state_digest
from thinwire.pretrained import load_causal_lm, load_tokenizer
from thinwire.sync import DirectoryStore, Publisher
from thinwire.train.loop import GrpoSettings, GrpoTrainer
from thinwire.train.rollout import Sampling, collect
from thinwire.train.weights import STORAGES, Weights
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.grpo_inputs import make_task, model_source
from thinwire_lab.experiments.versions import ONE_ANCHOR, copied, digest_number
from thinwire_lab.metrics.update_sparsity import LAGS
from thinwire_lab.recorder import Recorder
from thinwire_lab.tensor_groups import GROUPS, group_of

Shares: TypeAlias = dict[str, float]


class Config(StudyConfig):
    """One run of GRPO whose versions are compared."""

    precision: Literal["fp32_master", "bf16"] = Field(description="storage of the weights that the optimizer steps")
    lr: float = Field(gt=0, description="AdamW's learning rate after the warm-up")
    warmup: int = Field(ge=0, description="optimizer steps in which the learning rate rises linearly; not measured")
    steps: int = Field(ge=1, description="steps after the warm-up")
    model: str = Field(description="asset folder, or a name or path for transformers")
    task: Literal["arithmetic", "math", "gsm8k"] = Field(description="where the questions come from")
    kinds: Shares = Field(description="arithmetic: kind of sum -> its weight in the mix")
    shots: int = Field(ge=0, description="arithmetic: solved sums before each question")
    prompts: int = Field(ge=1, description="questions a step")
    group: int = Field(ge=2, description="answers a question")
    max_tokens: int = Field(ge=1, description="longest answer, tokens")
    temperature: float = Field(gt=0, description="sampling temperature")
    top_k: int = Field(default=0, ge=0, description="sampling: likeliest tokens kept, 0 for all")
    top_p: float = Field(default=1.0, gt=0, le=1, description="sampling: probability mass kept")
    prompts_at_once: int = Field(default=0, ge=0, description="questions that are sampled together, 0 for all")
    samples_at_once: int = Field(default=0, ge=0, description="answers in one backward pass, 0 for all")
    compute: Literal["float32", "bfloat16"] = Field(description="dtype of the model's arithmetic")
    device: str = Field(description="torch device of the training")
    keep_from: int = Field(default=0, description="step after which the first version is kept, where the row keeps any")
    keep_count: int = Field(default=9, ge=1, description="versions kept at most: one anchor, then patches")


def run(config: Config, record: Recorder) -> None:
    """Train, compare each version with those before it, and record."""
    source = model_source(config.model, record.assets)
    model = load_causal_lm(source, dtype=getattr(torch, config.compute), device=config.device)
    tokenizer = load_tokenizer(source)
    trainer = GrpoTrainer(STORAGES[config.precision](model), settings_of(config))
    task = make_task(
        config.task,
        config.kinds,
        shots=config.shots,
        generator=stream(record.seed, 0),
        tokenizer=tokenizer,
        assets=record.assets,
    )
    asking, drawing = stream(record.seed, 1), stream(record.seed, 2)
    sampling = Sampling(
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        top_k=config.top_k,
        top_p=config.top_p,
        prompts_at_once=config.prompts_at_once,
    )
    versions = Versions(trainer.weights.published_state())
    keeper = Keeper(config, record)
    keeper.offer(-config.warmup, trainer.weights.published_state())
    untaught = 0
    for index in range(1, config.warmup + config.steps + 1):
        step = index - config.warmup
        began = time.perf_counter()
        asked = task.draw(config.prompts, asking)
        rollouts = collect(
            trainer.model, tokenizer, task, asked, group=config.group, sampling=sampling, generator=drawing
        )
        sampled = time.perf_counter()
        report = trainer.step(rollouts)
        record.record(step, "rollout_seconds", sampled - began)
        record.record(step, "train_seconds", time.perf_counter() - sampled)
        untaught += not report.has_advantage
        record.record(step, "reward", report.reward)
        record.record(step, "loss", report.loss)
        record.record(step, "learning_rate", report.lr)
        record.record(step, "has_advantage", float(report.has_advantage))
        if report.has_advantage:
            record.record(step, "grad_norm", report.grad_norm)
            for scope, share in gradient_density(trainer.weights).items():
                record.record(step, "gradient_density", share, scope)
        state = trainer.weights.published_state()
        for lag, shares in versions.compare(state, taught=report.has_advantage, full_rate=step >= 1).items():
            for scope, share in shares.items():
                record.record(step, f"sparsity_{lag}", share, scope)
        record.record(step, "state_digest", keeper.offer(step, state))
        record.progress(index, config.warmup + config.steps)
    record.record(config.steps, "steps_without_advantage", untaught)
    record.note("versions", keeper.kept)


def settings_of(config: Config) -> GrpoSettings:
    """Return the optimizer's settings; all that the configuration does not name is as published."""
    return GrpoSettings(
        lr=config.lr, warmup=config.warmup, temperature=config.temperature, samples_at_once=config.samples_at_once
    )


def stream(seed: int, purpose: int) -> torch.Generator:
    """Return the generator of one purpose of a run (0 shots, 1 questions, 2 answers)."""
    return torch.Generator().manual_seed(1_000_003 * seed + purpose)


def share_by_group(counts: dict[str, tuple[int, int]]) -> dict[str, float]:
    """Turn (counted, total) by tensor into the share counted, over all and by tensor group."""
    shares = {}
    for scope in ("all", *GROUPS):
        picked = [count for name, count in counts.items() if scope in {"all", group_of(name)}]
        total = sum(total for _, total in picked)
        if total:
            shares[scope] = sum(counted for counted, _ in picked) / total
    return shares


def gradient_density(weights: Weights) -> dict[str, float]:
    """Return the share of non-zero entries of the last step's gradients, over all and by tensor group."""
    counts = {}
    for name, parameter in weights.stored.items():
        if parameter.grad is not None:
            counts[name] = (int(parameter.grad.count_nonzero()), parameter.grad.numel())
    return share_by_group(counts)


class Versions:
    """The last versions of the weights, to compare the next one with.

    Holds as many copies as the longest lag, and knows how many of the latest steps in a row made an update at the
    full learning rate: S_k is given only where all of its k steps did.
    """

    def __init__(self, state: State) -> None:
        """Start with the version before the first step."""
        self._past: deque[State] = deque([copied(state)], maxlen=max(LAGS))
        self._streak = 0

    def compare(self, state: State, *, taught: bool, full_rate: bool) -> dict[int, dict[str, float]]:
        """Return S_k by lag and tensor group for the version ``state``, then keep a copy of it.

        S_1 is given for every step that made an update (``taught``), the longer ones after the warm-up
        (``full_rate``).
        """
        self._streak = self._streak + 1 if taught and full_rate else 0
        found = {
            lag: share_by_group(unchanged(self._past[-lag], state))
            for lag in LAGS
            if taught and lag <= len(self._past) and lag <= max(self._streak, 1)
        }
        reused = self._past.popleft() if len(self._past) == self._past.maxlen else None
        self._past.append(copied(state) if reused is None else _copied_into(reused, state))
        return found


def _copied_into(held: State, state: State) -> State:
    for name, tensor in state.items():
        held[name].copy_(tensor)
    return held


def unchanged(before: State, after: State) -> dict[str, tuple[int, int]]:
    """Count, by tensor, the BF16 entries with equal bits, and all entries."""
    counts = {}
    for name, tensor in after.items():
        equal = before[name].view(torch.int16) == tensor.view(torch.int16)
        counts[name] = (int(equal.count_nonzero()), tensor.numel())
    return counts


class Keeper:
    """Keeps a stretch of consecutive versions where the row asks for it: one anchor, then patches, capped in
    number."""

    def __init__(self, config: Config, record: Recorder) -> None:
        """Open the store in the row's versions folder, if it has one."""
        self.kept: list[int] = []
        self._from, self._count = config.keep_from, config.keep_count
        self._publisher: Publisher | None = None
        if record.versions is not None:
            name = f"update_sparsity.{config.precision}.{config.lr!r}.{record.seed}"
            self._publisher = Publisher(DirectoryStore(record.versions), run_id=name, anchor_every=ONE_ANCHOR)

    def offer(self, step: int, state: State) -> float:
        """Publish the version after ``step`` if it is to be kept; return the first 52 bits of its state digest."""
        if self._publisher is not None and step >= self._from and len(self.kept) < self._count:
            digest = self._publisher.publish(state).digest
            self.kept.append(step)
        else:
            digest = state_digest(state)
        return digest_number(digest)
