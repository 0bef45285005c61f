"""Local learning: quality, throughput and memory of training in stages, against global backpropagation.

``part`` says which of the three a row measures. Quality trains one arm and scores held-out text. Throughput and memory
compare arms within one run, interleaved, because a ratio of two runs at different times is one of two loads.
"""

import os
import statistics
import time
from dataclasses import replace
from typing import Literal

from pydantic import Field, field_validator, model_validator

from thinwire.local import APPLIED, READ, TrainingPlan, memory_ledger, open_schedule
from thinwire.local.consensus import Consensus
from thinwire.models import ByteTransformerConfig
from thinwire.muon import Recipe
from thinwire.patch import state_digest
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.local_learning_memory import net_peak
from thinwire_lab.experiments.local_learning_speed import TimedArm, as_rows, baselines, interleaved_rates
from thinwire_lab.experiments.local_learning_text import TextBatches, held_out_bits, named_seed
from thinwire_lab.experiments.versions import digest_number
from thinwire_lab.recorder import Recorder
from thinwire_lab.text_places import text_folder

Arm = Literal[
    "global_backprop", "global_ddp", "global_1f1b", "local_independent", "local_async", "rgc_sync", "rgc_async"
]
PROCESSES = ("global_ddp", "global_1f1b", "local_async", "rgc_async")
"""Arms that train in processes of ``stage_threads`` threads each."""
CHUNK = 50
"""Steps between two reports of progress."""


class Config(StudyConfig):
    """Values of a row."""

    part: Literal["quality", "throughput", "memory"] = Field(description="what the row measures")
    arm: Arm = Field(default="rgc_async", description="schedule that a quality row trains under")
    text: Literal["enwiki", "stories", "enwik8", "tinystories"] = Field(default="enwiki", description="corpus")
    blocks: int = Field(default=24, ge=1, description="blocks of the transformer")
    stages: int = Field(default=4, ge=1, description="stages they are cut into")
    sizes: tuple[int, ...] = Field(default=(), description="blocks of each stage; empty: as even as they can be")
    overlap: int = Field(default=0, ge=0, description="blocks before a stage that its gradient also crosses")
    private: int = Field(default=0, ge=0, description="blocks of its own that a stage puts before the readout")
    consensus: Consensus = Field(default="mean", description="how the stages' readout gradients are weighted")
    similarity: float = Field(default=0.0, ge=0, description="weight of the similarity-matching loss")
    width: int = Field(default=64, ge=2, description="width of the residual stream")
    heads: int = Field(default=4, ge=1, description="attention heads")
    context: int = Field(default=128, ge=1, description="context in bytes")
    batch: int = Field(default=8, ge=1, description="windows a batch")
    steps: int = Field(default=300, ge=1, description="batches that a quality row trains; a memory row trains 8")
    staleness: int = Field(default=4, ge=0, description="readout updates that an asynchronous snapshot may lack")
    fresh_steps: int = Field(default=0, ge=0, description="first steps in which a snapshot lacks none")
    microbatches: int = Field(default=2, ge=1, description="micro-batches of global_1f1b")
    compiled: bool = Field(default=False, description="compile every block with torch.compile")
    autocast: bool = Field(default=False, description="BF16 products, where the processor has them")
    muon_lr: float = Field(default=0.02, gt=0, description="learning rate of the block matrices")
    adam_lr: float = Field(default=1e-2, gt=0, description="learning rate of embedding and readout")
    readout_lr: float | None = Field(default=None, gt=0, description="learning rate of the readout, if another")
    warmup: int = Field(default=50, ge=0, description="warm-up in steps")
    scored: Literal["validation", "test"] = Field(default="test", description="part of the text that held_out is of")
    held_out: int = Field(default=32, ge=1, description="held-out segments, each 16 contexts long")
    stage_threads: int = Field(default=1, ge=1, description="threads of each process of an arm in processes")
    timed_arms: tuple[str, ...] = Field(
        default=("global_backprop 1x1", "global_backprop 1x2", "global_ddp 2x1", "local_async 2x1", "rgc_async 2x1"),
        description="arms of a throughput row: schedule, workers x threads, perhaps staleness",
    )
    judged_arm: str = Field(default="rgc_async 2x1", description="timed arm whose ratios are also recorded as `judged`")
    account: bool = Field(default=True, description="also hold the account of bytes against the memory in use")
    repeats: int = Field(default=8, ge=1, description="timed repeats of every arm, after one untimed")
    repeat_steps: int = Field(default=12, ge=1, description="batches an arm trains in a repeat")

    @field_validator("timed_arms", "judged_arm")
    @classmethod
    def _arms(cls, arms: tuple[str, ...] | str) -> tuple[str, ...] | str:
        for arm in (arms,) if isinstance(arms, str) else arms:
            TimedArm.parse(arm)
        return arms

    @model_validator(mode="after")
    def _judged(self) -> "Config":
        if len(set(self.timed_arms)) < len(self.timed_arms):
            raise ValueError("timed_arms names an arm twice")
        if self.judged_arm not in self.timed_arms:
            raise ValueError(f"judged_arm {self.judged_arm!r} is not among timed_arms {', '.join(self.timed_arms)}")
        return self

    def plan(self, seed: int, steps: int, threads: int, stages: int | None = None) -> TrainingPlan:
        """The library's plan for these values; ``stages`` replaces theirs."""
        return TrainingPlan(
            model=ByteTransformerConfig(self.blocks, self.width, self.heads, self.context),
            steps=steps,
            seed=named_seed(seed, "initial weights"),
            stages=self.stages if stages is None else stages,
            threads=threads,
            staleness=self.staleness,
            recipe=Recipe(muon_lr=self.muon_lr, adam_lr=self.adam_lr, warmup=self.warmup),
            sizes=self.sizes,
            overlap=self.overlap,
            private=self.private,
            consensus=self.consensus,
            readout_lr=self.readout_lr,
            similarity=self.similarity,
            fresh_steps=self.fresh_steps,
            microbatches=self.microbatches,
            compiled=self.compiled,
            autocast=self.autocast,
        )

    def batches(self, record: Recorder) -> TextBatches:
        """The training batches of a run."""
        return TextBatches(text_folder(record.assets, self.text), record.seed, self.batch, self.context)


def run(config: Config, record: Recorder) -> None:
    """Measure the row's part."""
    # Deterministic mode also fills every fresh tensor, which would slow this process and not the stage workers.
    _note_machine(record, "before")
    {"quality": train_and_score, "throughput": _throughput, "memory": _memory}[config.part](config, record)
    _note_machine(record, "after")


def _note_machine(record: Recorder, when: str) -> None:
    record.note(f"load_{when}", list(os.getloadavg()))
    record.note("cores", sorted(os.sched_getaffinity(0)))


def train_and_score(config: Config, record: Recorder) -> None:
    """Train the row's arm and record its losses, its held-out bits per byte and how old its readout snapshots were."""
    threads = config.stage_threads if config.arm in PROCESSES else record.threads
    plan = config.plan(record.seed, config.steps, threads)
    with open_schedule(config.arm, plan, config.batches(record)) as schedule:
        losses, began = [], time.monotonic()
        while schedule.done < config.steps:
            losses += schedule.advance(min(CHUNK, config.steps - schedule.done))
            record.progress(schedule.done, config.steps)
        record.record(config.steps, "train_seconds", time.monotonic() - began)
        model, ledger = schedule.model(), schedule.ledger()
    for step, loss in enumerate(losses):
        record.record(step, "loss", loss)
    if ledger is not None:
        lag = ledger[:, :, APPLIED] - ledger[:, :, READ]
        for stage, row in enumerate(lag):
            record.record(config.steps, "readout_lag", row.double().mean().item(), f"stage_{stage}")
            record.record(config.steps, "readout_lag_max", row.max().item(), f"stage_{stage}")
    bits = held_out_bits(model, text_folder(record.assets, config.text), config.held_out, config.scored)
    for place, value in enumerate(bits):
        record.record(config.steps, "segment_bits_per_byte", value, f"segment_{place:03d}")
    record.record(config.steps, "bits_per_byte", statistics.fmean(bits))
    record.record(config.steps, "bytes_trained", config.steps * config.batch * config.context)
    record.record(config.steps, "state_digest", digest_number(state_digest(dict(model.state_dict()))))


def _throughput(config: Config, record: Recorder) -> None:
    steps = (config.repeats + 1) * config.repeat_steps
    arms = [TimedArm.parse(name) for name in config.timed_arms]
    plans = {}
    for arm in arms:
        plan = config.plan(record.seed, steps, arm.threads, arm.workers)
        plans[arm] = plan if arm.staleness is None else replace(plan, staleness=arm.staleness)
    rates = interleaved_rates(plans, config.batches(record), config.repeats, config.repeat_steps, record.progress)
    for name, arm in baselines(rates).items():
        record.note(name, arm.scope)
    for row in as_rows(rates, TimedArm.parse(config.judged_arm)):
        record.record(row.repeat, row.metric, row.value, row.scope)


def _memory(config: Config, record: Recorder) -> None:
    batches = config.batches(record)
    plan = config.plan(record.seed, 8, config.stage_threads)
    arms = ("global_backprop", "rgc_async")
    peaks = {}
    for done, arm in enumerate(arms):
        peak = net_peak(arm, plan, batches)
        peaks[arm] = peak.net["Pss"]
        record.record(0, "peak_pss", peak.net["Pss"], arm)
        record.record(0, "peak_anonymous", peak.net["Pss_Anon"], arm)
        record.record(0, "peak_shared", peak.net["Pss_Shmem"], arm)
        record.record(0, "process_floor", peak.floor, arm)
        record.note(f"samples_{arm}", peak.samples)
        record.progress(done + 1, 4 if config.account else 2)
    record.record(0, "memory_ratio", peaks["rgc_async"] / peaks["global_backprop"])
    for done, arm in enumerate(arms if config.account else ()):
        in_use = net_peak(arm, replace(plan, steps=3), batches, returning=True).net_each
        record.record(0, "in_use", in_use, arm)
        ledger = memory_ledger(arm, plan, config.batch)
        for part, amount in ledger.items():
            record.record(0, "ledger", amount, f"{arm}_{part}")
        record.record(0, "ledger_share", sum(ledger.values()) / in_use, arm)
        record.progress(done + 3, 4)
