"""Frames: patches and anchors as bytes, and back (docs/FORMAT.md is the page of the format).

Encodings of a patch: ``published`` (the paper's layout, for comparison), ``absolute`` (positions and new bits),
``relative`` (positions and zigzag differences of bit patterns; smaller), ``dense`` (XOR of whole tensors by byte
planes). ``auto`` takes relative or dense for each tensor by an estimate of its cost. An anchor is the whole state, as
``planes`` or ``raw``.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from thinwire.patch import published
from thinwire.patch.bits import Bits, State, bits_of, dtype_code, empty_bits, thread_count, tied_groups
from thinwire.patch.coding import (
    SparseStreams,
    changes_of_block,
    choose_coding,
    dense_lines,
    fold_block,
    read_sparse,
)
from thinwire.patch.digest import DigestTree, digest_tree, state_digest
from thinwire.patch.header import CODINGS, SPARSE, Header, TensorInfo, check_fits, read_header, row_of, split_payload
from thinwire.patch.patch import FrameError, Patch, TensorPatch, check_patch, distinct_elements
from thinwire.patch.streams import Row, pack_rows, pack_streams, unpack_rows, unpack_streams
from thinwire.patch.wire import Envelope, seal, unseal

ENCODINGS = ("auto", *CODINGS)
_LEAST_LIMIT = 1 << 32
_LIMIT_RATIO = 256


@dataclass(frozen=True)
class FrameInfo:
    """What a frame says of itself, its checksum verified; ``payload_bytes`` leaves out envelope and header."""

    kind: str
    encoding: str
    base_digest: str
    target_digest: str
    frame_bytes: int
    payload_bytes: int
    header: Header

    @property
    def changed(self) -> int:
        """Number of elements that the frame carries."""
        return sum(line.changed for line in self.header.tensors + self.header.whole)


def inspect(frame: Any) -> FrameInfo:
    """Return what ``frame`` says of itself, without a base; raises FrameError for a harmed frame."""
    envelope = unseal(frame)
    header = read_header(envelope.header, envelope.encoding, len(envelope.payload))
    return FrameInfo(
        envelope.kind,
        envelope.encoding,
        "" if envelope.kind == "anchor" else envelope.base_digest,
        envelope.target_digest,
        memoryview(frame).nbytes,
        len(envelope.payload),
        header,
    )


def _lines(whole: State, coding: str) -> tuple[TensorInfo, ...]:
    for name, tensor in whole.items():
        dtype_code(tensor.dtype, name)
    return tuple(TensorInfo(n, whole[n].dtype, tuple(whole[n].shape), coding, whole[n].numel()) for n in sorted(whole))


def _whole_jobs(whole: State, lines: tuple[TensorInfo, ...]) -> list[tuple[Row, Any]]:
    return [(row_of(line), partial(_slice, bits_of(whole[line.name]))) for line in lines]


def _slice(bits: Bits, start: int, stop: int) -> Bits:
    return bits[start:stop]


def encode(patch: Patch, base: State, encoding: str = "auto", *, threads: int | None = None, level: int = 1) -> bytes:
    """Return ``patch`` as a frame; ``base`` must be the version that it was taken against.

    ``encoding``: "auto", "published", "absolute", "relative" or "dense". ``level`` is zstd's (1 to 19). Raises
    ValueError for an unknown encoding and for what the published layout can't carry, FrameError for a patch that does
    not fit ``base``.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding {encoding!r} is unknown: one of {', '.join(ENCODINGS)}")
    check_patch(base, patch)
    count = thread_count(threads)
    whole = _lines(dict(patch.whole), "planes")
    header = Header(patch.total, (), whole, patch.removed, patch.ties)
    digests = (patch.base_digest, patch.target_digest)
    if encoding == "published":
        payload = [published.encode_published(patch, base, level=level)]
        lines = tuple(TensorInfo(p.name, base[p.name].dtype, None, encoding, p.positions.size) for p in patch.tensors)
        header = replace(header, tensors=lines, chunks=(len(payload[0]),))
        return seal("patch", encoding, digests, header.write(), payload, level)
    sparse = SparseStreams()
    dense: list[tuple[Row, Any]] = []
    table: list[TensorInfo] = []
    for part in patch.tensors:
        row = bits_of(base[part.name])
        old = row[part.positions]
        coding = choose_coding(part, old, row.size) if encoding == "auto" else encoding
        table.append(TensorInfo(part.name, base[part.name].dtype, None, coding, part.positions.size))
        if coding in SPARSE:
            sparse.add(part, old, coding)
        else:
            dense.append((Row(row.size, row.itemsize, False), partial(fold_block, part, row)))
    streams = sparse.streams()
    payload = pack_streams(streams, level, count)
    payload += pack_rows([*dense, *_whole_jobs(dict(patch.whole), whole)], level, count)
    header = replace(
        header,
        tensors=tuple(table),
        long_sizes=(streams[2].size, streams[4].size),
        chunks=tuple(len(chunk) for chunk in payload),
    )
    if encoding == "auto":
        used = {line.coding for line in table}
        encoding = used.pop() if len(used) == 1 else "relative"
    return seal("patch", encoding, digests, header.write(), payload, level)


def decode(
    frame: Any, base: State, *, base_digest: str | None = None, threads: int | None = None, limit: int | None = None
) -> Patch:
    """Return the patch in ``frame``, checked against ``base`` in every part; ``base`` is not written.

    ``base_digest``: the state digest of ``base`` where the caller holds it, verified; without it the base is hashed.
    ``limit``: most bytes that tensors carried whole may take (default: 256 times the frame, at least 4 GiB). Raises
    FrameError for a harmed or hostile frame, an anchor, and a frame of another base.
    """
    count = thread_count(threads)
    envelope = unseal(frame)
    if envelope.kind != "patch":
        raise FrameError("the frame is an anchor, a patch is needed here")
    header = read_header(envelope.header, envelope.encoding, len(envelope.payload))
    held = base_digest or state_digest(base, threads=count)
    if held != envelope.base_digest:
        raise FrameError(
            f"the base has state digest {held[:16]}…, the frame needs {envelope.base_digest[:16]}…: wrong base"
        )
    check_fits(header, base)
    rows = {line.name: bits_of(base[line.name]) for line in header.tensors}
    if envelope.encoding == "published":
        parts: tuple[tuple[TensorPatch, ...], State] = (_read_published(header, envelope.payload, base), {})
    else:
        parts = _read_parts(envelope, header, rows, count, _limit(frame, limit))
    patch = Patch(envelope.base_digest, envelope.target_digest, header.total, *parts, header.removed, header.ties)
    check_patch(base, patch)
    return patch


def _read_published(header: Header, payload: Any, base: State) -> tuple[TensorPatch, ...]:
    if header.whole or header.removed or header.chunks != (len(payload),):
        raise FrameError("a published payload stands alone, without tensors carried whole or removed")
    tensors = published.decode_published(payload, base)
    if [(part.name, part.positions.size) for part in tensors] != [(line.name, line.changed) for line in header.tensors]:
        raise FrameError("the published payload carries other tensors than the frame's header names")
    return tensors


def _limit(frame: Any, limit: int | None) -> int:
    return max(_LEAST_LIMIT, _LIMIT_RATIO * memoryview(frame).nbytes) if limit is None else limit


def _read_parts(
    envelope: Envelope, header: Header, rows: dict[str, Bits], threads: int, limit: int
) -> tuple[tuple[TensorPatch, ...], State]:
    dense = dense_lines(header)
    shapes = [Row(rows[line.name].size, rows[line.name].itemsize, False) for line in dense]
    chunks, blocks = split_payload(header, envelope.payload, [*shapes, *(row_of(line) for line in header.whole)])
    whole, places = _allocate(header, limit)
    streams = unpack_streams(chunks, header.stream_sizes(), threads)
    parts = {part.name: part for part in read_sparse(header, streams, rows)}
    jobs: list[tuple[Row, Any]] = [
        (shape, partial(changes_of_block, rows[line.name])) for shape, line in zip(shapes, dense, strict=True)
    ]
    jobs += [(row_of(line), partial(_lay, places[line.name])) for line in header.whole]
    found = unpack_rows(blocks, jobs, threads)
    for line, pieces in zip(dense, found, strict=False):
        positions = np.concatenate([piece[0] for piece in pieces])
        if positions.size != line.changed:
            raise FrameError(f"tensor {line.name!r} changes {positions.size} elements, its header says {line.changed}")
        parts[line.name] = TensorPatch(line.name, positions, np.concatenate([piece[1] for piece in pieces]))
    return tuple(parts[name] for name in sorted(parts)), whole


def _allocate(header: Header, limit: int) -> tuple[State, dict[str, Bits]]:
    size = sum(line.changed * line.dtype.itemsize for line in header.whole)
    if size > limit:
        raise FrameError(
            f"the frame declares {size} bytes of tensors, the limit is {limit}: state a higher limit to read it"
        )
    made = {line.name: empty_bits(line.dtype, line.shape or ()) for line in header.whole}
    return {name: tensor for name, (tensor, _) in made.items()}, {name: bits for name, (_, bits) in made.items()}


def _lay(place: Bits, start: int, bits: Bits) -> None:
    place[start : start + bits.size] = bits


def encode_anchor(
    state: State,
    *,
    compress: bool = True,
    threads: int | None = None,
    level: int = 1,
    tree: DigestTree | None = None,
) -> bytes:
    """Return the whole ``state`` as a frame: byte planes under zstd, or the raw bytes; tied tensors are written once.

    ``tree``: the digests of ``state`` where the caller holds them. Raises TypeError for a dtype that no frame carries.
    """
    count = thread_count(threads)
    ties = tied_groups(state)
    followers = {name for group in ties for name in group[1:]}
    whole = {name: tensor for name, tensor in state.items() if name not in followers}
    encoding = "planes" if compress else "raw"
    lines = _lines(whole, encoding)
    payload = pack_rows(_whole_jobs(whole, lines), level, count)
    header = Header(distinct_elements(state), (), lines, (), ties, chunks=tuple(len(chunk) for chunk in payload))
    target = (tree or digest_tree(state, threads=count)).root
    return seal("anchor", encoding, ("", target), header.write(), payload, level)


def decode_anchor(frame: Any, *, threads: int | None = None, limit: int | None = None, verify: bool = True) -> State:
    """Return the state in the anchor ``frame``, names in order, tied tensors tied.

    ``limit`` as in ``decode``. ``verify`` compares the state digest; without it only the checksum of the frame is.
    Raises FrameError for a harmed or hostile frame, a patch, and a state that is not the one that the frame names.
    """
    count = thread_count(threads)
    envelope = unseal(frame)
    if envelope.kind != "anchor":
        raise FrameError("the frame is a patch, an anchor is needed here")
    header = read_header(envelope.header, envelope.encoding, len(envelope.payload))
    if header.tensors or header.removed or any(header.long_sizes):
        raise FrameError("an anchor carries whole tensors only, this one declares changes")
    check_patch(
        {}, Patch("", "", 0, (), dict.fromkeys((line.name for line in header.whole), torch.empty(0)), (), header.ties)
    )
    _, whole = _read_parts(envelope, header, {}, count, _limit(frame, limit))
    for leader, *rest in header.ties:
        whole.update(dict.fromkeys(rest, whole[leader]))
    state = {name: whole[name] for name in sorted(whole)}
    if verify and state_digest(state, threads=count) != envelope.target_digest:
        raise FrameError(
            f"the anchor's tensors do not have the state digest {envelope.target_digest[:16]}… that it names"
        )
    return state
