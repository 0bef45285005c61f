"""The codecs that ``patch_codec`` compares: this project's encodings, the published layout, and what anyone could take.

A codec makes bytes of a step between two versions, and brings a receiver that holds the base, in place, to the target.
Three kinds stand here: those that code a patch (positions and new bits), those that look at both versions whole (dense
XOR, zstd with the base as its reference), and bsdiff, which sorts all suffixes of the base and can bear a slice only.
"""

import gzip
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import brotli
import bsdiff4
import lz4.frame
import numpy as np
import numpy.typing as npt
import snappy
import torch
import zstandard

from thinwire.patch import Patch, State, apply, decode, diff, encode
from thinwire.patch.bits import Bits, bits_of, bytes_of, tied_groups
from thinwire.patch.digest import DigestTree, digest_tree
from thinwire.patch.patch import TensorPatch
from thinwire.patch.published import pack_published, unpack_published
from thinwire.patch.running import RunningDigest, running_digest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd  # what Python has from 3.14 on; python-zstandard can't take the base as a prefix

ENCODINGS = ("relative", "context", "published", "absolute", "auto", "dense")
_QUICK = (*ENCODINGS[:3], "zstd1")
DIGESTED = ("relative", "context")
"""Encodings that are also timed without held digests, as ``relative_digests`` and ``context_digests``."""
PUBLISHED = "published_zstd1"
_PATCH_FROM_LEVEL = 3


@dataclass(frozen=True)
class Step:
    """Two consecutive versions, the digests that both sides hold, and the threads that codecs may use."""

    base: State
    target: State
    base_tree: DigestTree
    target_tree: DigestTree
    base_running: RunningDigest
    threads: int
    known: Patch | None = None

    @classmethod
    def of(cls, base: State, target: State, threads: int) -> "Step":
        """Hash both versions."""
        trees = [digest_tree(state, threads=threads) for state in (base, target)]
        return cls(base, target, trees[0], trees[1], running_digest(base, threads=threads), threads)

    @property
    def full_bytes(self) -> int:
        """Plain bytes of a version, tied tensors once."""
        return sum(self.base[name].nbytes for name in distinct(self.base))

    def patch(self) -> Patch:
        """Compare the versions, or return the patch that is known."""
        return self.known or diff(
            self.base,
            self.target,
            threads=self.threads,
            base_tree=self.base_tree,
            target_tree=self.target_tree,
            base_running=self.base_running,
        )

    def compared(self) -> "Step":
        """Return the same step with its patch known, so that codecs need not compare again."""
        return replace(self, known=self.patch())


@dataclass(frozen=True)
class Codec:
    """``write`` makes bytes of a step; ``read`` brings a receiver that holds the base, in place, to the target.

    ``pace``: a "quick" codec takes part in all that is measured, a "slow" one on few pairs and in few repeats.
    ``reach``: what it can bear, a whole "version", one now and then ("rare"), or a "slice" of it.
    """

    name: str
    write: Callable[[Step], bytes]
    read: Callable[[bytes, State, Step], None]
    pace: Literal["quick", "slow"] = "slow"
    reach: Literal["version", "rare", "slice"] = "version"


def distinct(state: State) -> list[str]:
    """Return the names of ``state`` in order, of tied tensors the first alone."""
    followers = {name for group in tied_groups(state) for name in group[1:]}
    return [name for name in sorted(state) if name not in followers]


def _write_encoded(encoding: str, step: Step) -> bytes:
    return encode(step.patch(), step.base, encoding, threads=step.threads)


def _read_encoded(data: bytes, state: State, step: Step) -> None:
    tree, running, threads = step.base_tree.root, step.base_running, step.threads
    patch = decode(data, state, base_digest=tree, base_running=running, threads=threads)
    apply(state, patch, in_place=True, base_digest=tree, base_running=running, threads=threads)


def _write_hashed(encoding: str, step: Step) -> bytes:
    return encode(diff(step.base, step.target, threads=step.threads), step.base, encoding, threads=step.threads)


def _read_hashed(data: bytes, state: State, step: Step) -> None:
    patch = decode(data, state, threads=step.threads)
    # decode hashed the base and compared
    apply(state, patch, in_place=True, base_digest=patch.base_digest, threads=step.threads)


def _write_published(compress: Callable[[bytes], bytes], step: Step) -> bytes:
    return compress(pack_published(step.patch(), step.base))


def _read_published(decompress: Callable[[bytes], bytes], data: bytes, state: State, step: Step) -> None:
    _apply_parts(unpack_published(decompress(data), state), state, step)


def _apply_parts(parts: tuple[TensorPatch, ...], state: State, step: Step) -> None:
    held = step.base_tree.root
    patch = Patch(held, step.target_tree.root, 0, parts, ties=tied_groups(state))
    apply(state, patch, in_place=True, base_digest=held)


def _write_pairs(step: Step) -> bytes:
    counts, pieces = [], []
    parts = {part.name: part for part in step.patch().tensors}
    for name in distinct(step.base):
        part = parts.get(name)
        counts.append(0 if part is None else part.positions.size)
        if part is not None:
            pieces += [part.positions.astype(np.int32).tobytes(), part.bits.tobytes()]
    return b"".join([np.array(counts, dtype=np.uint32).tobytes(), *pieces])


def _read_pairs(data: bytes, state: State, step: Step) -> None:
    names = distinct(state)
    counts = np.frombuffer(data, dtype=np.uint32, count=len(names))
    at, parts = 4 * len(names), []
    for name, count in zip(names, counts.tolist(), strict=True):
        kind = bits_of(state[name]).dtype
        positions = np.frombuffer(data, dtype=np.int32, count=count, offset=at).astype(np.int64)
        bits: Bits = np.frombuffer(data, dtype=kind, count=count, offset=at + 4 * count)
        at += (4 + kind.itemsize) * count
        if count:
            parts.append(TensorPatch(name, positions, bits))
    _apply_parts(tuple(parts), state, step)


def _write_xor(step: Step) -> bytes:
    compressor = zstandard.ZstdCompressor(level=1, threads=step.threads).compressobj(size=step.full_bytes)
    pieces = []
    for name in distinct(step.base):
        pieces.append(compressor.compress((bits_of(step.base[name]) ^ bits_of(step.target[name])).view(np.uint8).data))
    return b"".join([*pieces, compressor.flush()])


def _read_xor(data: bytes, state: State, step: Step) -> None:
    plain = zstandard.ZstdDecompressor().decompress(data)
    at = 0
    for name in distinct(state):
        row = bits_of(state[name])
        row ^= np.frombuffer(plain, dtype=row.dtype, count=row.size, offset=at)
        at += row.nbytes


def _joined(state: State) -> bytes:
    return b"".join(bytes_of(bits_of(state[name])) for name in distinct(state))


def _lay_out(plain: bytes, state: State) -> None:
    at = 0
    for name in distinct(state):
        row = bits_of(state[name])
        row[:] = np.frombuffer(plain, dtype=row.dtype, count=row.size, offset=at)
        at += row.nbytes


def _prefix(state: State) -> Any:
    return zstd.ZstdDict(_joined(state), is_raw=True).as_prefix


def _write_patch_from(step: Step) -> bytes:
    """As ``zstd --patch-from``: the base as raw reference, a window over both, long-distance matching."""
    plain = _joined(step.target)
    least, most = zstd.CompressionParameter.window_log.bounds()
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: _PATCH_FROM_LEVEL,
        zstd.CompressionParameter.window_log: min(most, max(least, (2 * len(plain)).bit_length())),
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    return zstd.compress(plain, options=options, zstd_dict=_prefix(step.base))


def _read_patch_from(data: bytes, state: State, step: Step) -> None:
    options: dict[int, int] = {
        zstd.DecompressionParameter.window_log_max: zstd.DecompressionParameter.window_log_max.bounds()[1]
    }
    _lay_out(zstd.decompress(data, zstd_dict=_prefix(state), options=options), state)


def _write_bsdiff(step: Step) -> bytes:
    made: bytes = bsdiff4.diff(_joined(step.base), _joined(step.target))
    return made


def _read_bsdiff(data: bytes, state: State, step: Step) -> None:
    _lay_out(bsdiff4.patch(_joined(state), data), state)


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
    """Return all codecs whose sizes are compared, the published one under zstd -1 first."""
    listed = [
        Codec(
            f"published_{name}",
            partial(_write_published, compress),
            partial(_read_published, decompress),
            "quick" if name in _QUICK else "slow",
        )
        for name, (compress, decompress) in _compressors().items()
    ]
    listed += [Codec("pairs_raw", _write_pairs, _read_pairs), Codec("xor_zstd1", _write_xor, _read_xor)]
    listed += [
        Codec(word, partial(_write_encoded, word), _read_encoded, "quick" if word in _QUICK else "slow")
        for word in ENCODINGS
    ]
    listed.append(Codec("zstd_patch_from", _write_patch_from, _read_patch_from, reach="rare"))
    return [*listed, Codec("bsdiff4", _write_bsdiff, _read_bsdiff, reach="slice")]


def hashing_codecs() -> list[Codec]:
    """Return the encodings as they run where no digest is held: both versions are hashed to write, the base to read."""
    return [Codec(f"{word}_digests", partial(_write_hashed, word), _read_hashed, "quick") for word in DIGESTED]


def undo(state: State, step: Step, patch: Patch) -> None:
    """Bring ``state``, at the step's target, back to its base."""
    for part in patch.tensors:
        bits_of(state[part.name])[part.positions] = bits_of(step.base[part.name])[part.positions]


def slice_of(step: Step, most_bytes: int) -> Step:
    """Return the step of some whole tensors alone, at most ``most_bytes`` of them (but one at least).

    Of the tensors that change, those are taken, in name order, that still fit.
    """
    sizes = {part.name: step.base[part.name].nbytes for part in step.patch().tensors}
    names, taken = [], 0
    for name, size in sizes.items():
        if taken + size <= most_bytes:
            names.append(name)
            taken += size
    names = names or [min(sizes, key=lambda name: (sizes[name], name))]
    base, target = ({name: state[name] for name in names} for state in (step.base, step.target))
    return Step.of(base, target, step.threads).compared()


_INTEGERS = {"uint8": np.uint8, "uint16": np.uint16, "int32": np.int32}
_VALUES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def public_decode(payload: bytes) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Decode a published payload the way its public implementation does, as the yardstick for speed.

    One zstd frame, a JSON header, and for each tensor: rows by a cumulative sum, columns restored by a loop over the
    rows that occur, int32 indices of shape (2, changes) and the values as a tensor of their dtype; every array is
    copied. Nothing is checked or applied. Returns name -> (indices, values).
    """
    plain = zstandard.ZstdDecompressor().decompress(payload)
    start = 4 + int.from_bytes(plain[:4], "little")
    found = {}
    for record in json.loads(plain[4:start].decode())["tensors"]:
        rows_at = start + record["indices_offset"]
        columns_at = rows_at + record["rows_size"]
        values_at = start + record["values_offset"]
        row_steps = _taken(plain, rows_at, record["rows_size"], _INTEGERS[record["row_dtype"]]).astype(np.int32)
        column_steps = _taken(plain, columns_at, record["cols_size"], _INTEGERS[record["col_dtype"]]).astype(np.int32)
        rows = np.cumsum(row_steps, dtype=np.int32)
        columns = _restored_columns(rows, column_steps)
        kind = _VALUES.get(record["value_dtype"], torch.float32)
        values = _taken(plain, values_at, record["values_size"], np.int16 if kind in _VALUES.values() else np.float32)
        indices = torch.stack([torch.from_numpy(rows), torch.from_numpy(columns)])
        found[record["name"]] = (indices, torch.from_numpy(values).view(kind))
    return found


def _taken(plain: bytes, at: int, size: int, kind: Any) -> npt.NDArray[Any]:
    return np.frombuffer(plain[at : at + size], dtype=kind).copy()


def _restored_columns(rows: npt.NDArray[np.int32], steps: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    columns = np.empty_like(steps)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(rows)) + 1, [rows.size]])
    for first, last in pairwise(starts.tolist()):
        columns[first:last] = np.cumsum(steps[first:last])
    return columns
