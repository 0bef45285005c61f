"""Frames: patches and anchors as bytes, and back (docs/FORMAT.md is the page of the format).

Encodings of a patch: ``published`` (the paper's layout, for comparison), ``absolute`` (positions and new bits),
``relative`` (positions and zigzag differences of bit patterns; smaller), ``context`` (both given what the base says;
smallest), ``dense`` (XOR of whole tensors by byte planes). ``auto`` takes for each tensor what an estimate finds
cheapest. An anchor is the whole state, as ``coded`` byte planes (``planes`` in frames of version 1) or ``raw``.
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
from thinwire.patch.context import encode_context
from thinwire.patch.context_reader import decode_context
from thinwire.patch.digest import DigestTree, digest_tree, state_digest
from thinwire.patch.entropy import value_of
from thinwire.patch.header import CODINGS, Header, TensorInfo, check_fits, read_header, row_of, split_payload
from thinwire.patch.patch import FrameError, Patch, TensorPatch, check_base, check_patch, distinct_elements
from thinwire.patch.running import RunningDigest, running_digest
from thinwire.patch.streams import Row, chunks_of_stream, pack_rows, pack_streams, unpack_rows, unpack_streams
from thinwire.patch.values import tally_moves
from thinwire.patch.wire import Digests, Envelope, seal, unseal

ENCODINGS = ("auto", *CODINGS)
_LEAST_CONTEXT = 1 << 11
_LEAST_LIMIT = 1 << 32
_LIMIT_RATIO = 256


@dataclass(frozen=True)
class FrameInfo:
    """What a frame says of itself, its checksum verified; ``payload_bytes`` leaves out envelope and header."""

    version: int
    kind: str
    encoding: str
    digests: Digests
    frame_bytes: int
    payload_bytes: int
    header: Header

    @property
    def base_digest(self) -> str:
        """State digest of the base, "" for an anchor."""
        return self.digests.base

    @property
    def target_digest(self) -> str:
        """State digest of the target."""
        return self.digests.target

    @property
    def changed(self) -> int:
        """Number of elements that the frame carries."""
        return sum(line.changed for line in self.header.tensors + self.header.whole)


def inspect(frame: Any) -> FrameInfo:
    """Return what ``frame`` says of itself, without a base; raises FrameError for a harmed frame."""
    envelope = unseal(frame)
    header = _header_of(envelope)
    return FrameInfo(
        envelope.version,
        envelope.kind,
        envelope.encoding,
        envelope.digests,
        memoryview(frame).nbytes,
        len(envelope.payload),
        header,
    )


def moves(frame: Any) -> dict[int, int] | None:
    """Return how many changes move their bit pattern how far, read without a base.

    The key 1 counts moves by one, 2 by two, 4 by three or four, 8 by five to eight, and so on, in units of the last
    place. None for a frame that holds changes as bits, which tell nothing without a base. Raises FrameError for a
    harmed frame.
    """
    envelope = unseal(frame)
    header = _header_of(envelope)
    if envelope.kind == "anchor" or any(line.coding not in ("relative", "context") for line in header.tensors):
        return None
    found: dict[int, int] = {}
    for model in header.models:
        for token, count in enumerate(model.move_counts.sum(axis=0).tolist()):
            reach = 1 << (int(value_of(token, np.uint64(0))) >> 1).bit_length()
            found[reach] = found.get(reach, 0) + count
    chunks, _, _ = split_payload(header, envelope.payload, [row_of(line) for line in header.whole])
    sizes = header.stream_sizes()
    try:
        tallied = tally_moves(chunks_of_stream(chunks, sizes, 3), chunks_of_stream(chunks, sizes, 4))
    except FrameError:
        raise
    except ValueError as error:
        raise FrameError(str(error)) from None
    for reach, count in tallied.items():
        found[reach] = found.get(reach, 0) + count
    return {reach: found[reach] for reach in sorted(found) if found[reach]}


def _header_of(envelope: Envelope) -> Header:
    return read_header(envelope.header, envelope.encoding, len(envelope.payload), envelope.version)


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

    ``encoding``: one of ENCODINGS. ``threads``: None takes torch's count. ``level`` is zstd's (1 to 19). Raises
    ValueError for an unknown encoding and for what the published layout can't carry, FrameError for a patch that does
    not fit ``base``.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"encoding {encoding!r} is unknown: one of {', '.join(ENCODINGS)}")
    check_patch(base, patch)
    count = thread_count(threads)
    whole = _lines(dict(patch.whole), "planes")
    header = Header(patch.total, (), whole, patch.removed, patch.ties)
    digests = Digests(patch.base_digest, patch.target_digest, patch.base_running, patch.target_running)
    if encoding == "published":
        payload = [published.encode_published(patch, base, level=level)]
        lines = tuple(TensorInfo(p.name, base[p.name].dtype, None, encoding, p.positions.size) for p in patch.tensors)
        header = replace(header, tensors=lines, chunks=(len(payload[0]),))
        return seal("patch", encoding, digests, header.write(), payload, level)
    rows = {part.name: bits_of(base[part.name]) for part in patch.tensors}
    codings = _codings(patch, rows) if encoding == "auto" else dict.fromkeys(rows, encoding)
    sparse = SparseStreams()
    dense: list[tuple[Row, Any]] = []
    context: dict[str, TensorPatch] = {}
    for part in patch.tensors:
        row, coding = rows[part.name], codings[part.name]
        if coding == "context":
            context[part.name] = part
        elif coding == "dense":
            dense.append((Row(row.size, row.itemsize, False), partial(fold_block, part, row)))
        else:
            sparse.add(part, row[part.positions], coding)
    streams = sparse.streams()
    payload = pack_streams(streams, level, count)
    payload += pack_rows([*dense, *_whole_jobs(dict(patch.whole), whole)], level, count)
    coded = encode_context(context, rows, {name: base[name].dtype for name in context}, count)
    header = replace(
        header,
        tensors=tuple(
            TensorInfo(p.name, base[p.name].dtype, None, codings[p.name], p.positions.size) for p in patch.tensors
        ),
        long_sizes=(streams[2].size, streams[4].size),
        chunks=tuple(len(chunk) for chunk in payload),
        models=coded.models,
        segments=coded.segments,
    )
    if encoding == "auto":
        used = set(codings.values())
        encoding = used.pop() if len(used) == 1 else "context" if context else "relative"
    return seal("patch", encoding, digests, header.write(), [*payload, *coded.chunks], level)


def _codings(patch: Patch, rows: dict[str, Bits]) -> dict[str, str]:
    """Choose a coding for each tensor by estimate: context instead of relative where the model pays for itself."""
    found = {
        part.name: choose_coding(part, rows[part.name][part.positions], rows[part.name].size) for part in patch.tensors
    }
    relative = sum(part.positions.size for part in patch.tensors if found[part.name] == "relative")
    if relative < _LEAST_CONTEXT:
        return found
    return {name: "context" if coding == "relative" else coding for name, coding in found.items()}


def decode(
    frame: Any,
    base: State,
    *,
    base_digest: str | None = None,
    base_running: RunningDigest | None = None,
    threads: int | None = None,
    limit: int | None = None,
) -> Patch:
    """Return the patch in ``frame``, checked against ``base`` in every part; ``base`` is not written.

    ``base_digest`` and ``base_running``: digests of ``base`` that the caller holds; either is verified, without both
    the base is hashed. ``limit``: most bytes that tensors carried whole may take (default: 256 times the frame, at
    least 4 GiB). Raises FrameError for a harmed or hostile frame, an anchor, and a frame of another base.
    """
    count = thread_count(threads)
    envelope = unseal(frame)
    if envelope.kind != "patch":
        raise FrameError("the frame is an anchor, a patch is needed here")
    header = _header_of(envelope)
    digests = envelope.digests
    check_base((digests.base, digests.base_running), base, base_digest, base_running, count)
    check_fits(header, base)
    rows = {line.name: bits_of(base[line.name]) for line in header.tensors}
    if envelope.encoding == "published":
        parts: tuple[tuple[TensorPatch, ...], State] = (_read_published(header, envelope.payload, base), {})
    else:
        parts = _read_parts(envelope, header, rows, count, _limit(frame, limit))
    patch = Patch(
        digests.base,
        digests.target,
        header.total,
        *parts,
        header.removed,
        header.ties,
        digests.base_running,
        digests.target_running,
    )
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
    chunks, blocks, segments = split_payload(
        header, envelope.payload, [*shapes, *(row_of(line) for line in header.whole)]
    )
    whole, places = _allocate(header, limit)
    streams = unpack_streams(chunks, header.stream_sizes(), threads)
    parts = {part.name: part for part in read_sparse(header, streams, rows)}
    lines = [(line.name, line.dtype, line.changed) for line in header.tensors if line.coding == "context"]
    context = decode_context(lines, header.models, header.segments, segments, rows, threads)
    parts.update({part.name: part for part in context})
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
    running: RunningDigest | None = None,
) -> bytes:
    """Return the whole ``state`` as a frame: coded byte planes, or the raw bytes; tied tensors are written once.

    ``tree`` and ``running``: the digests of ``state`` where the caller holds them. Raises TypeError for a dtype that no
    frame carries.
    """
    count = thread_count(threads)
    ties = tied_groups(state)
    followers = {name for group in ties for name in group[1:]}
    whole = {name: tensor for name, tensor in state.items() if name not in followers}
    encoding = "coded" if compress else "raw"
    lines = _lines(whole, encoding)
    payload = pack_rows(_whole_jobs(whole, lines), level, count)
    header = Header(distinct_elements(state), (), lines, (), ties, chunks=tuple(len(chunk) for chunk in payload))
    target = (tree or digest_tree(state, threads=count)).root
    digests = Digests("", target, "", (running or running_digest(state, threads=count)).hex)
    return seal("anchor", encoding, digests, header.write(), payload, level)


def decode_anchor(frame: Any, *, threads: int | None = None, limit: int | None = None, verify: bool = True) -> State:
    """Return the state in the anchor ``frame``, names in order, tied tensors tied.

    ``limit`` as in ``decode``. ``verify`` compares the state digest; without it only the checksum of the frame is.
    Raises FrameError for a harmed or hostile frame, a patch, and a state that is not the one that the frame names.
    """
    count = thread_count(threads)
    envelope = unseal(frame)
    if envelope.kind != "anchor":
        raise FrameError("the frame is a patch, an anchor is needed here")
    header = _header_of(envelope)
    if header.tensors or header.removed or any(header.long_sizes):
        raise FrameError("an anchor carries whole tensors only, this one declares changes")
    check_patch(
        {}, Patch("", "", 0, (), dict.fromkeys((line.name for line in header.whole), torch.empty(0)), (), header.ties)
    )
    _, whole = _read_parts(envelope, header, {}, count, _limit(frame, limit))
    for leader, *rest in header.ties:
        whole.update(dict.fromkeys(rest, whole[leader]))
    state = {name: whole[name] for name in sorted(whole)}
    if verify and state_digest(state, threads=count) != envelope.digests.target:
        raise FrameError(
            f"the anchor's tensors do not have the state digest {envelope.digests.target[:16]}… that it names"
        )
    return state
