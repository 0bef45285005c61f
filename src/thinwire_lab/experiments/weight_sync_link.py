"""What a slow link makes of full weights and of patches: bytes of kept versions, and seconds through a shaped store.

Seconds are measured, not computed: the receiver reads through a store that waits as the link would, then decodes,
applies and verifies. The bandwidth that keeps workers busy follows from such measurements by

    utilisation = C / (C + encode + 8 * bytes / bandwidth + apply)

where C is the work between two versions, one rollout and one training step measured here and scaled to the batch of
the published runs. An arm whose encode and apply alone cost a worker its 90 % reaches them at no bandwidth, and then
has none.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from thinwire.patch import State, diff, encode
from thinwire.patch.digest import digest_tree
from thinwire.sync import DirectoryStore, Manifest, MemoryStore, Publisher, ShapedStore, Subscriber
from thinwire.train.loop import GrpoTrainer
from thinwire.train.rollout import collect
from thinwire.train.weights import STORAGES
from thinwire_lab.experiments.weight_sync_setup import (
    Config,
    Rows,
    digest_number,
    generator,
    load_model,
    load_tokenizer,
    row,
    sampling_of,
    settings_of,
    task_of,
)

ONE_ANCHOR = 10**9
BUSY = 0.9


@dataclass(frozen=True)
class Transfer:
    """One version moved by one arm: seconds and bytes."""

    encode: float
    pull: float
    apply: float
    manifest: Manifest
    correct: bool


def utilisation(compute: float, encode: float, frame_bytes: float, apply: float, bits_per_second: float) -> float:
    """Return the busy share of a worker: ``compute``, ``encode`` and ``apply`` in seconds."""
    return compute / (compute + encode + 8 * frame_bytes / bits_per_second + apply)


def bandwidth_for(busy: float, compute: float, encode: float, frame_bytes: float, apply: float) -> float | None:
    """Return the bits per second at which a worker is busy for the share ``busy``; None where none is enough."""
    left = compute * (1 / busy - 1) - encode - apply
    return 8 * frame_bytes / left if left > 0 else None


def _timed_publish(publisher: Publisher, state: State) -> tuple[Manifest, float]:
    begun = time.perf_counter()
    manifest = publisher.publish(state)
    return manifest, time.perf_counter() - begun


def _timed_pull(reader: Subscriber, expected: str) -> tuple[float, bool]:
    begun = time.perf_counter()
    reader.pull()
    seconds = time.perf_counter() - begun
    assert reader.manifest is not None
    return seconds, reader.manifest.digest == expected


def _full_transfer(target: State, rate: float) -> Transfer:
    store = MemoryStore()
    publisher = Publisher(store, run_id="link", anchor_every=1, compress_anchors=False)
    manifest, encoded = _timed_publish(publisher, target)
    applied, _ = _timed_pull(Subscriber(store), manifest.digest)
    pulled, correct = _timed_pull(Subscriber(ShapedStore(store, rate)), manifest.digest)
    return Transfer(encoded, pulled, applied, manifest, correct)


def _patch_transfer(base: State, target: State, rate: float, encoding: str) -> Transfer:
    store = MemoryStore()
    publisher = Publisher(store, run_id="link", anchor_every=ONE_ANCHOR, encoding=encoding, compress_anchors=False)
    publisher.publish(base)
    near, far = Subscriber(store), Subscriber(store)
    near.pull()
    far.pull()
    manifest, encoded = _timed_publish(publisher, target)
    applied, _ = _timed_pull(near, manifest.digest)
    far.store = ShapedStore(store, rate)
    pulled, correct = _timed_pull(far, manifest.digest)
    return Transfer(encoded, pulled, applied, manifest, correct)


def chosen_versions(versions: list[int], count: int, seed: int) -> list[int]:
    """Return ``count`` of ``versions`` (all, if fewer) with a version before them, drawn by the seed, ascending."""
    followers = versions[1:]
    order = torch.randperm(len(followers), generator=generator(seed, "versions")).tolist()
    return sorted(followers[i] for i in order[:count])


def _copy(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def payload_rows(config: Config, versions: Path) -> Rows:
    """Return, for each kept version after the first, the bytes that each encoding takes."""
    reader = Subscriber(DirectoryStore(versions))
    numbers = DirectoryStore(versions).names("versions/")[: config.payloads + 1]
    base = _copy(reader.pull(0))
    tree = digest_tree(base)
    rows: Rows = []
    for version in range(1, len(numbers)):
        target = reader.pull(version)
        target_tree = digest_tree(target)
        patch = diff(base, target, base_tree=tree, target_tree=target_tree)
        full_bytes = sum(tensor.nbytes for tensor in target.values())
        rows += [
            row(version, "full_bytes", full_bytes),
            row(version, "changed_share", patch.changed / patch.total),
            row(version, "state_digest", digest_number(target_tree.root), "trainer"),
        ]
        for encoding in config.encodings:
            size = len(encode(patch, base, encoding))
            rows += [
                row(version, "frame_bytes", size, encoding),
                row(version, "payload_ratio", full_bytes / size, encoding),
            ]
        base, tree = _copy(target), target_tree
    return rows


def transfer_rows(config: Config, seed: int, versions: Path) -> tuple[Rows, dict[str, list[Transfer]]]:
    """Move some kept versions over the shaped link, each as full weights and as a patch."""
    store = DirectoryStore(versions)
    numbers = sorted(int(name[-15:-5]) for name in store.names("versions/"))
    reader = Subscriber(store)
    rows: Rows = []
    moved: dict[str, list[Transfer]] = {"full": [], "patch": []}
    for version in chosen_versions(numbers, config.transfers, seed):
        base = _copy(reader.pull(numbers[numbers.index(version) - 1]))
        target = _copy(reader.pull(version))
        if not moved["patch"]:  # compiled loops are loaded at their first use, which no clock should see
            _patch_transfer(base, target, 1e15, config.encoding)
        expected = reader.manifest.digest if reader.manifest else ""
        for arm, transfer in (
            ("full", _full_transfer(target, config.bits_per_second)),
            ("patch", _patch_transfer(base, target, config.bits_per_second, config.encoding)),
        ):
            moved[arm].append(transfer)
            correct = transfer.correct and transfer.manifest.digest == expected
            rows += [
                row(version, "encode_seconds", transfer.encode, arm),
                row(version, "pull_seconds", transfer.pull, arm),
                row(version, "apply_seconds", transfer.apply, arm),
                row(version, "digest_checks", 1, arm),
                row(version, "digest_mismatches", not correct, arm),
            ]
        rows.append(row(version, "pull_ratio", moved["full"][-1].pull / moved["patch"][-1].pull))
    return rows, moved


def compute_rows(config: Config, seed: int, source: str) -> tuple[Rows, float]:
    """Measure a rollout and a training step; return the rows and the seconds of both together, means over the steps."""
    trainer = GrpoTrainer(STORAGES[config.precision](load_model(source)), settings_of(config))
    tokenizer, task, sampling = load_tokenizer(source), task_of(config, seed), sampling_of(config)
    questions, draws = generator(seed, "questions"), generator(seed, "answers")
    rows: Rows = []
    for step in range(config.compute_steps + 1):
        asked = task.draw(config.prompts, questions)
        begun = time.perf_counter()
        rollouts = collect(
            trainer.model, tokenizer, task, asked, group=config.group, sampling=sampling, generator=draws
        )
        between = time.perf_counter()
        trainer.step(rollouts)
        ended = time.perf_counter()
        if step:
            rows += [
                row(step, "rollout_seconds", between - begun),
                row(step, "train_seconds", ended - between),
            ]
    return rows, statistics.fmean(value for _, _, value, _ in rows) * 2


def busy_rows(config: Config, compute: float, moved: dict[str, list[Transfer]]) -> tuple[Rows, str]:
    """Return utilisation and the bandwidth at 90 %, and a sentence on what could not be reached ("" when all was)."""
    batch = compute * config.published_answers / (config.prompts * config.group)
    rows = [row(0, "compute_seconds", batch)]
    bandwidths: dict[str, float] = {}
    unreached = []
    for arm, transfers in moved.items():
        encoded = statistics.fmean(transfer.encode for transfer in transfers)
        applied = statistics.fmean(transfer.apply for transfer in transfers)
        size = statistics.fmean(transfer.manifest.frame_bytes for transfer in transfers)
        for scope, window in ((arm, batch), (f"{arm}_own_batch", compute)):
            rows += [
                row(0, "utilisation_limit", window / (window + encoded + applied), scope),
                row(0, "utilisation", utilisation(window, encoded, size, applied, config.bits_per_second), scope),
            ]
        bandwidth = bandwidth_for(BUSY, batch, encoded, size, applied)
        if bandwidth is None:
            unreached.append(f"{arm} reaches 90 % at no bandwidth: {encoded + applied:.2f} s to encode and apply")
        else:
            bandwidths[arm] = bandwidth
            rows.append(row(0, "bandwidth_90", bandwidth, arm))
    if not unreached:
        rows.append(row(0, "bandwidth_ratio", bandwidths["full"] / bandwidths["patch"]))
    return rows, "; ".join(unreached)
