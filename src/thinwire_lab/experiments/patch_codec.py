"""How small and how fast can the patch between two versions be coded?

The patches are those of a real training run (``update_sparsity`` keeps its versions). The published codec (arXiv
2602.03839, appendix C) stands here under each general compressor that the paper tries, beside dense XOR, raw pairs
and this project's own encodings; the conditional entropy of a change given the base's exponents says how far each is
from what is possible. Every codec brings the version over to a receiver, whose state digest must be the sender's.
"""

import gzip
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import brotli
import lz4.frame
import numpy as np
import snappy
import torch
import zstandard
from pydantic import Field

from thinwire.patch import Patch, State, apply, decode, diff, encode, encode_anchor, state_digest
from thinwire.patch.bits import bits_of
from thinwire.patch.digest import DigestTree, digest_tree
from thinwire.patch.patch import TensorPatch
from thinwire.patch.published import pack_published, unpack_published
from thinwire.sync import DirectoryStore, Subscriber
from thinwire.sync.chain import committed_versions, read_manifest
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.patch_codec_bound import entropy_bound
from thinwire_lab.experiments.versions import copied
from thinwire_lab.recorder import Recorder

ENCODINGS = ("absolute", "relative", "dense", "auto")
PUBLISHED = "published_zstd1"


class Config(StudyConfig):
    """Which chain is read and how much of it."""

    source: str = Field(description="label of the run whose versions are read, e.g. bf16_lr3e-6")
    pairs: int = Field(
        default=6, ge=1, description="most consecutive version pairs that are coded, the last of the chain"
    )
    timed_pairs: int = Field(default=2, ge=0, description="how many of them, from the last, are timed as well")
    repeats: int = Field(default=3, ge=1, description="timed repeats; in each, every codec runs once, after the others")


@dataclass(frozen=True)
class Step:
    """Two consecutive versions with their digests, and the threads that codecs may use."""

    base: State
    target: State
    base_tree: DigestTree
    target_tree: DigestTree
    threads: int

    def patch(self) -> Patch:
        """Compare the versions."""
        return diff(
            self.base, self.target, threads=self.threads, base_tree=self.base_tree, target_tree=self.target_tree
        )


@dataclass(frozen=True)
class Codec:
    """``write`` makes bytes of a step; ``read`` brings a receiver that holds the base, in place, to the target."""

    name: str
    write: Callable[[Step], bytes]
    read: Callable[[bytes, State, Step], None]


def _write_encoded(encoding: str, step: Step) -> bytes:
    return encode(step.patch(), step.base, encoding, threads=step.threads)


def _read_encoded(data: bytes, state: State, step: Step) -> None:
    held = step.base_tree.root
    apply(state, decode(data, state, base_digest=held, threads=step.threads), in_place=True, base_digest=held)


def _write_published(compress: Callable[[bytes], bytes], step: Step) -> bytes:
    return compress(pack_published(step.patch(), step.base))


def _read_published(decompress: Callable[[bytes], bytes], data: bytes, state: State, step: Step) -> None:
    _apply_parts(unpack_published(decompress(data), state), state, step)


def _apply_parts(parts: tuple[TensorPatch, ...], state: State, step: Step) -> None:
    held = step.base_tree.root
    apply(state, Patch(held, step.target_tree.root, 0, parts), in_place=True, base_digest=held)


def _write_pairs(step: Step) -> bytes:
    counts, pieces = [], []
    parts = {part.name: part for part in step.patch().tensors}
    for name in sorted(step.base):
        part = parts.get(name)
        counts.append(0 if part is None else part.positions.size)
        if part is not None:
            pieces += [part.positions.astype(np.int32).tobytes(), part.bits.tobytes()]
    return b"".join([np.array(counts, dtype=np.uint32).tobytes(), *pieces])


def _read_pairs(data: bytes, state: State, step: Step) -> None:
    names = sorted(state)
    counts = np.frombuffer(data, dtype=np.uint32, count=len(names))
    at, parts = 4 * len(names), []
    for name, count in zip(names, counts.tolist(), strict=True):
        kind = bits_of(state[name]).dtype
        positions = np.frombuffer(data, dtype=np.int32, count=count, offset=at).astype(np.int64)
        bits = np.frombuffer(data, dtype=kind, count=count, offset=at + 4 * count)
        at += (4 + kind.itemsize) * count
        if count:
            parts.append(TensorPatch(name, positions, bits))
    _apply_parts(tuple(parts), state, step)


def _write_xor(step: Step) -> bytes:
    size = sum(tensor.nbytes for tensor in step.base.values())
    compressor = zstandard.ZstdCompressor(level=1, threads=step.threads).compressobj(size=size)
    pieces = []
    for name in sorted(step.base):
        pieces.append(compressor.compress((bits_of(step.base[name]) ^ bits_of(step.target[name])).view(np.uint8).data))
    return b"".join([*pieces, compressor.flush()])


def _read_xor(data: bytes, state: State, step: Step) -> None:
    plain = zstandard.ZstdDecompressor().decompress(data)
    at = 0
    for name in sorted(step.base):
        row = bits_of(state[name])
        row ^= np.frombuffer(plain, dtype=row.dtype, count=row.size, offset=at)
        at += row.nbytes


def _compressors() -> dict[str, tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]]:
    zstd = zstandard.ZstdDecompressor().decompress
    found = {f"zstd{level}": (zstandard.ZstdCompressor(level=level).compress, zstd) for level in (1, 3, 9)}
    return {
        **found,
        "lz4": (lz4.frame.compress, lz4.frame.decompress),
        "snappy": (snappy.compress, snappy.decompress),
        "gzip6": (partial(gzip.compress, compresslevel=6, mtime=0), gzip.decompress),
        "brotli1": (partial(brotli.compress, quality=1), brotli.decompress),
        "brotli6": (partial(brotli.compress, quality=6), brotli.decompress),
    }


def codecs() -> list[Codec]:
    """Return all codecs, the published one under zstd -1 first."""
    listed = [
        Codec(f"published_{name}", partial(_write_published, compress), partial(_read_published, decompress))
        for name, (compress, decompress) in _compressors().items()
    ]
    listed += [Codec("pairs_raw", _write_pairs, _read_pairs), Codec("xor_zstd1", _write_xor, _read_xor)]
    return listed + [Codec(word, partial(_write_encoded, word), _read_encoded) for word in ENCODINGS]


def _undo(state: State, step: Step, patch: Patch) -> None:
    for part in patch.tensors:
        bits_of(state[part.name])[part.positions] = bits_of(step.base[part.name])[part.positions]


def _measure_sizes(step: Step, state: State, version: int, record: Recorder) -> None:
    patch = step.patch()
    full = sum(tensor.nbytes for tensor in step.base.values())
    bound = entropy_bound(step.base, patch)
    record.record(version, "changed_weights", patch.changed)
    record.record(version, "changed_share", patch.changed / patch.total)
    record.record(version, "bound_bits", bound.position + bound.value)
    record.record(version, "bound_position_bits", bound.position)
    record.record(version, "bound_value_bits", bound.value)
    published = 0
    for codec in codecs():
        data = codec.write(step)
        codec.read(data, state, step)
        same = state_digest(state, threads=step.threads) == step.target_tree.root
        _undo(state, step, patch)
        published = len(data) if codec.name == PUBLISHED else published
        bits = 8 * len(data) / patch.changed
        record.record(version, "codec_bytes", len(data), codec.name)
        record.record(version, "bits_per_change", bits, codec.name)
        record.record(version, "payload_ratio", full / len(data), codec.name)
        record.record(version, "over_published", len(data) / published, codec.name)
        record.record(version, "over_bound", bits / (bound.position + bound.value), codec.name)
        record.record(version, "round_trip", float(same), codec.name)


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _all_equal(a: State, b: State) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def _measure_speeds(step: Step, state: State, version: int, repeats: int, record: Recorder) -> None:
    """Time every codec once in each repeat, so that what slows the machine for a while slows all of them."""
    patch = step.patch()
    full = sum(tensor.nbytes for tensor in step.base.values())
    equal, digest = [], []
    encoding: dict[str, list[float]] = {codec.name: [] for codec in codecs()}
    decoding: dict[str, list[float]] = {codec.name: [] for codec in codecs()}
    for _ in range(repeats):
        equal.append(full / _seconds(partial(_all_equal, step.base, state)))
        digest.append(full / _seconds(partial(state_digest, step.base, threads=step.threads)))
        for codec in codecs():
            start = time.perf_counter()
            data = codec.write(step)
            encoding[codec.name].append(full / (time.perf_counter() - start))
            decoding[codec.name].append(full / _seconds(partial(codec.read, data, state, step)))
            _undo(state, step, patch)
    record.record(version, "equal_rate", statistics.median(equal))
    record.record(version, "digest_rate", statistics.median(digest))
    for word, rates in (("encode", encoding), ("decode", decoding)):
        for name, found in rates.items():
            record.record(version, f"{word}_rate", statistics.median(found), name)
            paired = statistics.median(rate / other for rate, other in zip(found, equal, strict=True))
            record.record(version, f"{word}_over_equal", paired, name)


def _pairs(store: DirectoryStore, most: int, source: str) -> list[tuple[int, int]]:
    """Return the last ``most`` pairs of consecutive versions that differ (a step without advantage changes none)."""
    manifests = [read_manifest(store, version) for version in committed_versions(store)]
    pairs = [(a.version, b.version) for a, b in pairwise(manifests) if a.digest != b.digest]
    if not pairs:
        raise ValueError(f"the chain of {source} holds {len(manifests)} versions, of which no two in a row differ")
    return pairs[-most:]


def run(config: Config, record: Recorder) -> None:
    """Code the last version pairs of the chain under ``record.inputs["versions"]`` with every codec.

    Raises ValueError for a chain without two consecutive versions that differ.
    """
    store = DirectoryStore(record.inputs["versions"])
    pairs = _pairs(store, config.pairs, config.source)
    reader = Subscriber(store)
    record.note("pairs", len(pairs))
    for done, (before, version) in enumerate(pairs, start=1):
        base = copied(reader.pull(before))
        target = copied(reader.pull(version))
        base_tree, target_tree = (digest_tree(state, threads=record.threads) for state in (base, target))
        step = Step(base, target, base_tree, target_tree, record.threads)
        state = copied(base)
        _measure_sizes(step, state, version, record)
        if done > len(pairs) - config.timed_pairs:
            _measure_speeds(step, state, version, config.repeats, record)
        record.progress(done, len(pairs))
    full = sum(tensor.nbytes for tensor in target.values())
    for name, compress in (("planes", True), ("raw", False)):
        frame = encode_anchor(target, compress=compress, threads=record.threads, tree=step.target_tree)
        record.record(version, "anchor_share", len(frame) / full, name)
