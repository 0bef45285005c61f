"""A trainer and a rollout worker in processes of their own, who meet in a store and nowhere else.

Version t is the trainer's weights after t steps. The worker builds the architecture without weights, reads a version
into it, samples answers and writes them into the store; the trainer reads them, takes a step and publishes the next
version. The two alternate, so nothing depends on timing: whether full weights or patches moved, every number must be
the same.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import safetensors.torch
import torch

from thinwire.patch import State, state_digest
from thinwire.pretrained import load_tokenizer
from thinwire.spawn import run_workers
from thinwire.sync import DirectoryStore, MissingError, Publisher, Store, Subscriber
from thinwire.train.loop import GrpoTrainer
from thinwire.train.rollout import Rollouts, collect
from thinwire.train.weights import STORAGES, read_state
from thinwire_lab.experiments.versions import ONE_ANCHOR, digest_number
from thinwire_lab.experiments.weight_sync_setup import (
    Config,
    Rows,
    blank_model,
    generator,
    load_model,
    row,
    sampling_of,
    settings_of,
    task_of,
)

_POLL_SECONDS = 0.005
_MAX_ROLLOUT_BYTES = 1 << 30

T = TypeVar("T")


def dump_rollouts(rollouts: Rollouts) -> bytes:
    """Return a step's answers as safetensors bytes."""
    return safetensors.torch.save(
        {
            "prompt_tokens": torch.tensor([token for prompt in rollouts.prompts for token in prompt]),
            "prompt_lengths": torch.tensor([len(prompt) for prompt in rollouts.prompts]),
            "completions": rollouts.completions,
            "mask": rollouts.mask,
            "logprobs": rollouts.logprobs,
            "rewards": rollouts.rewards,
            "group": torch.tensor(rollouts.group),
        }
    )


def load_rollouts(data: bytes) -> Rollouts:
    """Read what ``dump_rollouts`` wrote."""
    tensors = safetensors.torch.load(data)
    prompts = torch.split(tensors["prompt_tokens"], tensors["prompt_lengths"].tolist())
    return Rollouts(
        tuple(tuple(prompt.tolist()) for prompt in prompts),
        tensors["completions"],
        tensors["mask"],
        tensors["logprobs"],
        tensors["rewards"],
        int(tensors["group"]),
    )


def _rollout_name(step: int) -> str:
    return f"rollouts/{step:010d}"


def _wait_for(ask: Callable[[], T | None]) -> T:
    """Ask until there is an answer; a peer that dies ends both processes, so there is no time-out here."""
    while (answer := ask()) is None:
        time.sleep(_POLL_SECONDS)
    return answer


def _rollouts_of(store: Store, step: int) -> Rollouts | None:
    try:
        return load_rollouts(store.get(_rollout_name(step), at_most=_MAX_ROLLOUT_BYTES))
    except MissingError:
        return None


def _committed(subscriber: Subscriber, version: int) -> int | None:
    latest = subscriber.latest()
    return None if latest is None or latest < version else latest


def _train(config: Config, seed: int, store: Store, source: str) -> Rows:
    trainer = GrpoTrainer(STORAGES[config.precision](load_model(config, source)), settings_of(config))
    publisher = Publisher(
        store,
        run_id=f"weight_sync-{config.arm}-{seed}",
        anchor_every=1 if config.arm == "full" else ONE_ANCHOR,
        encoding=config.encoding,
        compress_anchors=False,
    )
    rows: Rows = []
    for version in range(config.steps + 1):
        begun = time.perf_counter()
        manifest = publisher.publish(trainer.weights.published_state())
        rows += [
            row(version, "publish_seconds", time.perf_counter() - begun),
            row(version, "state_digest", digest_number(manifest.digest), "trainer"),
            row(version, "frame_bytes", manifest.frame_bytes),
            row(version, "full_bytes", manifest.full_bytes),
        ]
        if version == config.steps:
            break
        step = version + 1
        rollouts = _wait_for(partial(_rollouts_of, store, step))
        publisher.retire(version)  # the worker answered from it, so nobody is on the way to an earlier one
        begun = time.perf_counter()
        report = trainer.step(rollouts)
        rows += [
            row(step, "train_seconds", time.perf_counter() - begun),
            row(step, "reward", report.reward),
            row(step, "loss", report.loss),
            row(step, "has_advantage", report.has_advantage),
        ]
    return rows


def _held_by(model: torch.nn.Module, state: State) -> State:
    """Return the values that the model computes with, in the dtypes of ``state``."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    return {name: own[name].detach().to("cpu", tensor.dtype) for name, tensor in state.items()}


def _roll_out(config: Config, seed: int, store: Store, source: str, assets: Path) -> Rows:
    model, tokenizer = blank_model(config, source), load_tokenizer(source)
    subscriber = Subscriber(store)
    task, sampling = task_of(config, seed, tokenizer, assets), sampling_of(config)
    questions, draws = generator(seed, "questions"), generator(seed, "answers")
    rows: Rows = []
    for version in range(config.steps + 1):
        _wait_for(partial(_committed, subscriber, version))
        begun = time.perf_counter()
        state = subscriber.pull(version)
        rows.append(row(version, "pull_seconds", time.perf_counter() - begun))
        read_state(model, state)
        rows.append(row(version, "state_digest", digest_number(state_digest(_held_by(model, state))), "worker"))
        if version == config.steps:
            break
        begun = time.perf_counter()
        asked = task.draw(config.prompts, questions)
        rollouts = collect(model, tokenizer, task, asked, group=config.group, sampling=sampling, generator=draws)
        rows.append(row(version + 1, "rollout_seconds", time.perf_counter() - begun))
        store.create(_rollout_name(version + 1), dump_rollouts(rollouts))
    return rows


def _work(rank: int, config: Config, seed: int, folder: Path, source: str, assets: Path) -> Rows:
    torch.use_deterministic_algorithms(True)
    if config.device == "cuda":  # a GPU each, where there are two
        config = config.model_copy(update={"device": f"cuda:{rank % torch.cuda.device_count()}"})
    store = DirectoryStore(folder)
    return _train(config, seed, store, source) if rank == 0 else _roll_out(config, seed, store, source, assets)


def run_training(config: Config, seed: int, folder: Path, source: str, assets: Path, *, threads: int) -> Rows:
    """Train ``config.steps`` steps in two processes of ``threads`` threads each; return the rows of both.

    ``folder`` holds the store and is the caller's to delete. Raises WorkerError when either process fails.
    """
    trained, rolled_out = run_workers(_work, (config, seed, folder, source, assets), workers=2, threads=threads)
    rows: Rows = trained + rolled_out
    held = {(step, scope): value for step, metric, value, scope in rows if metric == "state_digest"}
    for version in range(config.steps + 1):
        differs = held[version, "trainer"] != held[version, "worker"]
        rows += [row(version, "digest_checks", 1), row(version, "digest_mismatches", differs)]
    return rows
