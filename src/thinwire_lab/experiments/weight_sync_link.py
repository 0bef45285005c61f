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
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from thinwire.patch import State, diff, encode, state_digest
from thinwire.pretrained import load_tokenizer
from thinwire.sync import DirectoryStore, Manifest, MemoryStore, Publisher, ShapedStore, Subscriber
from thinwire.sync.chain import committed_versions, read_manifest
from thinwire.train.loop import GrpoTrainer
from thinwire.train.rollout import collect
from thinwire.train.weights import STORAGES
from thinwire_lab.experiments.versions import ONE_ANCHOR, copied
from thinwire_lab.experiments.weight_sync_setup import (
    Config,
    Rows,
    generator,
    load_model,
    row,
    sampling_of,
    settings_of,
    task_of,
)

BUSY = 0.9
_NO_LIMIT = 1e15  # bit/s


@dataclass(frozen=True)
class Transfer:
    """One version moved by one arm: seconds, bytes, and the digest of what the receiver holds."""

    encode: float
    pull: float
    apply: float
    frame_bytes: int
    held: str


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


def _timed_pull(reader: Subscriber) -> tuple[State, float]:
    begun = time.perf_counter()
    state = reader.pull()
    return state, time.perf_counter() - begun


def _full_transfer(target: State, rate: float) -> Transfer:
    store = MemoryStore()
    publisher = Publisher(store, run_id="link", anchor_every=1, compress_anchors=False)
    manifest, encoded = _timed_publish(publisher, target)
    _, applied = _timed_pull(Subscriber(store))
    state, pulled = _timed_pull(Subscriber(ShapedStore(store, rate)))
    return Transfer(encoded, pulled, applied, manifest.frame_bytes, state_digest(state))


def _patch_transfer(base: State, target: State, rate: float, encoding: str) -> Transfer:
    store = MemoryStore()
    publisher = Publisher(store, run_id="link", anchor_every=ONE_ANCHOR, encoding=encoding, compress_anchors=False)
    publisher.publish(base)
    near, far = Subscriber(store), Subscriber(store)
    near.pull()
    far.pull()
    manifest, encoded = _timed_publish(publisher, target)
    if manifest.kind != "patch":
        raise ValueError(
            f"the patch takes {manifest.frame_bytes} bytes, no less than the weights: choose other versions"
        )
    _, applied = _timed_pull(near)
    far.store = ShapedStore(store, rate)
    state, pulled = _timed_pull(far)
    return Transfer(encoded, pulled, applied, manifest.frame_bytes, state_digest(state))


def changed_versions(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return those of consecutive ``manifests`` whose weights differ from the version before.

    A training step in which no group has an advantage changes nothing, and its empty patch would make a ratio that
    says nothing.
    """
    return [after for before, after in pairwise(manifests) if after.digest != before.digest]


def chosen(manifests: Sequence[Manifest], count: int, seed: int) -> list[Manifest]:
    """Return ``count`` of ``manifests`` (all, if fewer), in order.

    Consecutive seeds take consecutive stretches, so that they move other versions while there are enough.
    """
    places = {(seed * count + index) % len(manifests) for index in range(min(count, len(manifests)))}
    return [manifests[place] for place in sorted(places)]


def payload_rows(version: int, base: State, target: State, encodings: Sequence[str]) -> Rows:
    """Return the bytes that each encoding makes of the patch from ``base`` to ``target``."""
    patch = diff(base, target)
    full_bytes = sum(tensor.nbytes for tensor in target.values())
    rows = [
        row(version, "full_bytes", full_bytes),
        row(version, "changed_share", patch.changed / patch.total),
    ]
    for encoding in encodings:
        size = len(encode(patch, base, encoding))
        rows += [
            row(version, "frame_bytes", size, encoding),
            row(version, "payload_ratio", full_bytes / size, encoding),
        ]
    return rows


def transfer_rows(config: Config, seed: int, versions: Path) -> tuple[Rows, dict[str, list[Transfer]]]:
    """Move some kept versions over the shaped link, each as full weights and as a patch.

    Versions that change nothing are counted and left out; when there are no others, nothing is moved.
    """
    store = DirectoryStore(versions)
    kept = [read_manifest(store, version) for version in committed_versions(store)]
    changed = changed_versions(kept)
    reader = Subscriber(store)
    rows: Rows = [row(0, "versions_without_change", len(kept) - 1 - len(changed))]
    moved: dict[str, list[Transfer]] = {"full": [], "patch": []}
    for version in [manifest.version for manifest in chosen(changed, config.transfers, seed)]:
        base = copied(reader.pull(version - 1))
        target = copied(reader.pull(version))
        rows += payload_rows(version, base, target, config.encodings)
        if not moved["patch"]:  # compiled loops are loaded at their first use, which no clock should see
            _patch_transfer(base, target, _NO_LIMIT, config.encoding)
        moved["full"].append(_full_transfer(target, config.bits_per_second))
        moved["patch"].append(_patch_transfer(base, target, config.bits_per_second, config.encoding))
        wrong = 0
        for arm, (*_, transfer) in moved.items():
            wrong += state_digest(target) != transfer.held
            rows += [
                row(version, "encode_seconds", transfer.encode, arm),
                row(version, "pull_seconds", transfer.pull, arm),
                row(version, "apply_seconds", transfer.apply, arm),
            ]
        rows += [
            row(version, "pull_ratio", moved["full"][-1].pull / moved["patch"][-1].pull),
            row(version, "digest_checks", len(moved)),
            row(version, "digest_mismatches", wrong),
        ]
    return rows, moved


def compute_rows(config: Config, seed: int, source: str, assets: Path) -> tuple[Rows, float]:
    """Measure rollouts and training steps; return the rows and the mean seconds of one of each."""
    trainer = GrpoTrainer(STORAGES[config.precision](load_model(config, source)), settings_of(config))
    tokenizer, sampling = load_tokenizer(source), sampling_of(config)
    task = task_of(config, seed, tokenizer, assets)
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
    return rows, sum(value for _, _, value, _ in rows) / config.compute_steps


def busy_rows(config: Config, compute: float, moved: dict[str, list[Transfer]]) -> tuple[Rows, str]:
    """Return utilisation and the bandwidth at 90 %, and a sentence on what could not be reached ("" when all was)."""
    batch = compute * config.published_answers / (config.prompts * config.group)
    rows = [row(0, "compute_seconds", batch)]
    bandwidths: dict[str, float] = {}
    unreached = []
    for arm, transfers in moved.items():
        encoded = statistics.fmean(transfer.encode for transfer in transfers)
        applied = statistics.fmean(transfer.apply for transfer in transfers)
        size = statistics.fmean(transfer.frame_bytes for transfer in transfers)
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
