"""How small and how fast can the patch between two versions be coded?

The patches are those of a real training run (``update_sparsity`` keeps its versions). The published codec (arXiv
2602.03839, appendix C) stands here under each general compressor that the paper tries, beside dense XOR, raw pairs,
zstd with the base as reference, bsdiff and this project's own encodings; the conditional entropy of a change given the
base's exponents says how far each is from what is possible. Every codec brings the version over to a receiver, whose
state digest must be the sender's.
"""

from collections.abc import Iterable
from itertools import pairwise

from pydantic import Field

from thinwire.patch import State, encode_anchor, state_digest
from thinwire.sync import DirectoryStore, Subscriber
from thinwire.sync.chain import committed_versions, read_manifest
from thinwire_lab.config import StudyConfig
from thinwire_lab.experiments.patch_codec_bound import entropy_bound
from thinwire_lab.experiments.patch_codec_memory import MIB, extra_memory
from thinwire_lab.experiments.patch_codec_rivals import (
    DIGESTED,
    PUBLISHED,
    Codec,
    Step,
    codecs,
    hashing_codecs,
    slice_of,
    undo,
)
from thinwire_lab.experiments.patch_codec_speed import Summary, time_codecs
from thinwire_lab.experiments.versions import copied
from thinwire_lab.recorder import Recorder


class Config(StudyConfig):
    """Which chain is read and how much of it."""

    source: str = Field(description="label of the run whose versions are read, e.g. bf16_lr3e-6")
    pairs: int = Field(
        default=6, ge=1, description="most consecutive version pairs that are coded, the last of the chain"
    )
    slow_pairs: int = Field(default=2, ge=0, description="how many of them, from the last, slow codecs code as well")
    rare_pairs: int = Field(
        default=1, ge=0, description="how many of them, from the last, zstd with a reference and bsdiff code as well"
    )
    slice_mib: int = Field(default=4, ge=1, description="most MiB of whole tensors that bsdiff is given")
    timed_pairs: int = Field(default=2, ge=0, description="how many pairs, from the last, are timed as well")
    repeats: int = Field(default=5, ge=1, description="timed repeats; in each, every quick codec runs once")
    slow_repeats: int = Field(default=1, ge=1, description="how many of them the slow codecs take part in")
    memory: bool = Field(default=True, description="measure the extra memory on the last pair")


def _record_sizes(
    step: Step, state: State, listed: Iterable[Codec], version: int, bound_bits: float, record: Recorder
) -> None:
    """Record the size of each codec on ``step`` beside the published codec's on the same; ``state`` stays the base."""
    patch = step.patch()
    published = len(next(codec for codec in codecs() if codec.name == PUBLISHED).write(step))
    for codec in listed:
        data = codec.write(step)
        codec.read(data, state, step)
        same = state_digest(state, threads=step.threads) == step.target_tree.root
        undo(state, step, patch)
        bits = 8 * len(data) / patch.changed
        record.record(version, "codec_bytes", len(data), codec.name)
        record.record(version, "bits_per_change", bits, codec.name)
        record.record(version, "payload_ratio", step.full_bytes / len(data), codec.name)
        record.record(version, "over_published", len(data) / published, codec.name)
        record.record(version, "over_bound", bits / bound_bits, codec.name)
        record.record(version, "round_trip", float(same), codec.name)


def _measure_sizes(step: Step, state: State, version: int, listed: Iterable[Codec], record: Recorder) -> None:
    patch = step.patch()
    bound = entropy_bound(step.base, patch)
    record.record(version, "changed_weights", patch.changed)
    record.record(version, "changed_share", patch.changed / patch.total)
    record.record(version, "bound_bits", bound.total)
    record.record(version, "bound_position_bits", bound.position)
    record.record(version, "bound_value_bits", bound.value)
    _record_sizes(step, state, listed, version, bound.total, record)


def _measure_slice(step: Step, most_bytes: int, version: int, record: Recorder) -> None:
    part = slice_of(step, most_bytes)
    bound = entropy_bound(part.base, part.patch())
    record.record(version, "slice_bytes", part.full_bytes)
    record.record(version, "slice_changed_weights", part.patch().changed)
    record.record(version, "slice_bound_bits", bound.total)
    listed = [codec for codec in codecs() if codec.reach == "slice"]
    _record_sizes(part, copied(part.base), listed, version, bound.total, record)


def _measure_speeds(step: Step, state: State, version: int, config: Config, record: Recorder) -> None:
    listed = [*codecs(), *hashing_codecs()]
    timing = time_codecs(step, state, listed, repeats=config.repeats, slow_repeats=config.slow_repeats)
    equal = Summary.of(timing.equal)
    record.record(version, "equal_rate", equal.median)
    record.record(version, "equal_spread", equal.spread)
    record.record(version, "digest_rate", Summary.of(timing.digest).median)
    record.record(version, "decode_rate", Summary.of(timing.public).median, "public_decode")
    public = timing.over_equal({"public": timing.public}, "public")
    record.record(version, "decode_over_equal", public.median, "public_decode")
    record.record(version, "decode_spread", public.spread, "public_decode")
    for word, side in (("encode", timing.encode), ("decode", timing.decode)):
        for name, rates in side.items():
            ratio = timing.over_equal(side, name)
            record.record(version, f"{word}_rate", Summary.of(rates).median, name)
            record.record(version, f"{word}_over_equal", ratio.median, name)
            record.record(version, f"{word}_spread", ratio.spread, name)
    for name in timing.decode:
        record.record(version, "decode_over_public", timing.over_public(name).median, name)


def _sized(config: Config, left: int) -> list[Codec]:
    """Return the codecs that code the pair after which ``left`` more come."""
    whole = [
        codec for codec in codecs() if codec.reach == "version" and (codec.pace == "quick" or left < config.slow_pairs)
    ]
    return whole + [codec for codec in codecs() if codec.reach == "rare" and left < config.rare_pairs]


def _measure_anchor(step: Step, version: int, record: Recorder) -> None:
    for name, compress in (("coded", True), ("raw", False)):
        frame = encode_anchor(step.target, compress=compress, threads=step.threads, tree=step.target_tree)
        record.record(version, "anchor_share", len(frame) / step.full_bytes, name)


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
    for left, (before, version) in zip(range(len(pairs) - 1, -1, -1), pairs, strict=True):
        base = copied(reader.pull(before))
        target = copied(reader.pull(version))
        step = Step.of(base, target, record.threads)
        compared, state = step.compared(), copied(base)
        _measure_sizes(compared, state, version, _sized(config, left), record)
        if left < config.rare_pairs:
            _measure_slice(compared, config.slice_mib * MIB, version, record)
        if left < config.timed_pairs:
            _measure_speeds(step, state, version, config, record)
        record.progress(len(pairs) - left, len(pairs))
    _measure_anchor(step, version, record)
    if config.memory:
        for encoding, sides in extra_memory(base, target, DIGESTED, record.threads).items():
            for side, mebibytes in sides.items():
                record.record(version, "extra_memory", mebibytes, f"{encoding}_{side}")
