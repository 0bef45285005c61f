"""Torn, cut, extended, flipped and hostile frames: one FrameError, before any tensor is touched, and nothing else."""

import resource
import struct
import time
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
import zstandard
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.patch import FrameError, apply, decode, decode_anchor, diff, encode, encode_anchor, state_digest
from thinwire.patch.bits import bits_of
from thinwire.patch.frame import CODINGS, inspect, moves
from thinwire.patch.header import Header, TensorInfo
from thinwire.patch.published import pack_published
from thinwire.patch.wire import Digests, Packer, inflate, seal, unseal


def versions():
    generator = torch.Generator().manual_seed(0)
    base = {
        "a": torch.randn(12, 11, generator=generator).bfloat16(),
        "b": torch.randn(300, generator=generator),
    }
    target = {name: tensor.clone() for name, tensor in base.items()}
    bits_of(target["a"])[[1, 2, 130]] += np.uint16(3)
    bits_of(target["b"])[[7, 290]] ^= np.uint32(1 << 30)
    return base, target


BASE, TARGET = versions()
PATCH = diff(BASE, TARGET)
DIGEST = PATCH.base_digest
PUBLISHED = unseal(encode(PATCH, BASE, "published"))
WIDER = {**TARGET, "c": torch.arange(6).reshape(2, 3), "d": torch.zeros(())}
FRAMES = {word: encode(PATCH, BASE, word) for word in CODINGS}
FRAMES["schema"] = encode(diff(BASE, {name: WIDER[name] for name in ("a", "c", "d")}), BASE)
ANCHORS = {"coded": encode_anchor(BASE), "raw": encode_anchor(BASE, compress=False)}


def read(frame):
    if frame[10:11] == b"\x02":
        return decode_anchor(frame)
    return apply(BASE, decode(frame, BASE, base_digest=DIGEST), base_digest=DIGEST)


def signed(body):
    return bytes(body) + blake3(bytes(body)).digest()


@pytest.mark.parametrize("word", [*FRAMES, *ANCHORS])
def test_every_cut_and_every_extension_is_refused(word):
    frame = {**FRAMES, **ANCHORS}[word]
    for size in range(len(frame)):
        with pytest.raises(FrameError):
            read(frame[:size])
    for extra in (b"\0", frame, b"THINWIRE"):
        with pytest.raises(FrameError):
            read(frame + extra)


@pytest.mark.parametrize("word", [*FRAMES, *ANCHORS])
def test_every_flipped_bit_is_refused(word):
    frame = bytearray({**FRAMES, **ANCHORS}[word])
    for place in range(len(frame)):
        flip = 1 << place % 8
        frame[place] ^= flip
        with pytest.raises(FrameError):
            read(bytes(frame))
        frame[place] ^= flip
    assert read(bytes(frame))


@pytest.mark.parametrize("word", [*FRAMES, *ANCHORS])
@given(st.data())
@settings(max_examples=150)
def test_a_forged_frame_with_a_right_checksum_is_read_or_refused(word, data):
    body = bytearray({**FRAMES, **ANCHORS}[word][:-32])
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(11, len(body) - 1))
        way = data.draw(st.sampled_from(["set", "cut", "double"]))
        if way == "set":
            body[place] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 254, 255]))
        elif way == "cut":
            del body[place : place + data.draw(st.integers(1, 4))]
        else:
            body[place:place] = body[place : place + data.draw(st.integers(1, 4))]
        if len(body) < 125:
            break
    before = state_digest(BASE)
    with suppress(FrameError):
        assert all(isinstance(tensor, torch.Tensor) for tensor in read(signed(body)).values())
    assert state_digest(BASE) == before


@given(st.binary(max_size=200))
@settings(max_examples=100)
def test_noise_is_refused(noise):
    for frame in (noise, b"THINWIRE" + noise):
        with pytest.raises(FrameError):
            inspect(frame)


def header_frame(header, payload=(), encoding="relative", kind="patch"):
    digests = Digests(DIGEST, PATCH.target_digest) if kind == "patch" else Digests("", DIGEST)
    chunks = tuple(len(part) for part in payload)
    return seal(kind, encoding, digests, replace(header, chunks=chunks).write(), list(payload), 1)


def line(name="a", coding="relative", changed=1, dtype=torch.bfloat16, shape=None):
    return TensorInfo(name, dtype, shape, coding, changed)


EMPTY = Header(432, (), (), (), ())
LYING = {
    "unknown tensor": (replace(EMPTY, tensors=(line("z"),)), "not in the base"),
    "another dtype": (replace(EMPTY, tensors=(line(dtype=torch.float16),)), "elements of"),
    "more changes than elements": (replace(EMPTY, tensors=(line(changed=133),)), "132 elements"),
    "no changes": (replace(EMPTY, tensors=(line(changed=0),)), "with 0 changes"),
    "a name twice": (replace(EMPTY, tensors=(line(), line())), "stands twice"),
    "names out of order": (replace(EMPTY, tensors=(line("b", dtype=torch.float32), line())), "not in order"),
    "a published tensor": (replace(EMPTY, tensors=(line(coding="published"),)), "is published"),
    "removed twice": (replace(EMPTY, removed=("a", "a")), "stands twice"),
    "removed unknown": (replace(EMPTY, removed=("z",)), "not in the base"),
    "long gaps without changes": (replace(EMPTY, long_sizes=(1, 0)), "long streams"),
    "missing chunks": (replace(EMPTY, tensors=(line(),)), "lists 0 chunks"),
    "huge tensor": (replace(EMPTY, whole=(line("c", "planes", 1 << 40, torch.int8, (1 << 40,)),)), "chunks"),
    "too many elements": (replace(EMPTY, whole=(line("c", "planes", 0, torch.int8, (1 << 40, 1 << 40)),)), "elements"),
}


@pytest.mark.parametrize("case", LYING)
def test_a_lying_header_is_refused_by_name(case):
    header, message = LYING[case]
    with pytest.raises(FrameError, match=message):
        decode(header_frame(header), BASE, base_digest=DIGEST)


def gaps(low, high, long=b"", small=b"\1", far=b""):
    return [part for part in (low, high, long, small, far) if part]


@pytest.mark.parametrize(
    ("parts", "long", "message"),
    [
        (gaps(b"\x84", b"\x00"), (0, 0), "beyond the 132 elements"),
        (gaps(b"\x00", b"\xff", b"\xff" * 9 + b"\x01"), (10, 0), "beyond the 132 elements"),
        (gaps(b"\x00", b"\xff", b"\x80"), (1, 0), "a long gap is cut"),
        (gaps(b"\x00", b"\x00", b"\x00"), (1, 0), "bytes too many"),
        (gaps(b"\x00", b"\x00", small=b"\xff", far=b"\x80\x80\x04"), (0, 3), "wider than its element"),
        (gaps(b"\x00", b"\x00", small=b"\xff", far=b"\x80"), (0, 1), "cut"),
        ([b"\x00", b"\x00\x00", b"\x01"], (0, 0), "larger than its plain bytes"),
    ],
)
def test_lying_streams_are_refused_by_name(parts, long, message):
    frame = header_frame(replace(EMPTY, tensors=(line(),), long_sizes=long), parts)
    with pytest.raises(FrameError, match=message):
        decode(frame, BASE, base_digest=DIGEST)


def test_a_dense_tensor_with_another_count_is_refused():
    frame = header_frame(
        replace(EMPTY, tensors=(line(coding="dense", changed=2),)), [bytes(132), b"\1" + bytes(131)], "dense"
    )
    with pytest.raises(FrameError, match="changes 1 elements, its header says 2"):
        decode(frame, BASE, base_digest=DIGEST)


def test_a_decompression_bomb_allocates_nothing():
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 28))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FrameError, match="at most 67108864 are allowed"):
        inflate(bomb, 1 << 28, 1 << 26, "header")
    with pytest.raises(FrameError, match="another size"):
        inflate(bomb, 100, 1 << 26, "chunk")
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100))
    with pytest.raises(FrameError, match="another size"):
        inflate(unsized, 100, 1 << 26, "chunk")
    fixed = struct.pack("<8sHBBIIQ32s32s", b"THINWIRE", 1, 1, 2, len(bomb), 1 << 28, 0, bytes(32), bytes(32))
    with pytest.raises(FrameError, match="at most 67108864 are allowed"):
        inspect(signed(fixed + bomb))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB: no trace of the bomb's 256 MiB


@pytest.mark.parametrize(
    ("fields", "unit", "message"),
    [
        (0, b"\0\x0b\x02\x01", "stands twice"),
        (1, b"\0\x0b\0", "stands twice"),
        (2, b"\0", "stands twice"),
        (3, b"\0", "fewer than two"),
        (6, b"\1", "chunks for a payload of 0 bytes"),
        (8, b"\0\4\0", "segments for a payload of 0 bytes"),
    ],
)
def test_a_header_that_repeats_itself_is_refused_before_it_is_read_whole(fields, unit, message):
    count = (1 << 25) // len(unit)  # 32 MiB, in a frame of some kilobytes
    header = Packer()
    header.data += bytes(1 + fields)
    header.number(count)
    header.data += unit * count
    frame = seal("patch", "relative", Digests(DIGEST, DIGEST), bytes(header.data), [], 1)
    assert len(frame) < 1 << 14
    before = time.process_time()
    with pytest.raises(FrameError, match=message):
        inspect(frame)
    assert time.process_time() - before < 5


@pytest.mark.parametrize("coding", ["relative", "context"])
def test_counting_the_moves_of_more_changes_than_the_frame_can_hold_is_refused_at_once(coding):
    lines = tuple(TensorInfo(name, torch.bfloat16, None, "relative", 1 << 60) for name in "ab")
    frame = seal(
        "patch", coding, Digests(DIGEST, DIGEST), Header(1 << 60, lines, (), (), (), (1 << 60, 0)).write(), [], 1
    )
    before = time.process_time()
    with pytest.raises(FrameError, match="lists 0 chunks where its tensors need"):
        moves(frame)
    assert time.process_time() - before < 1


def test_counting_moves_holds_one_piece_of_a_stream_at_a_time():
    pieces = 256
    one, low = (zstandard.ZstdCompressor().compress(bytes([byte]) * (1 << 20)) for byte in (1, 0))
    lines = (TensorInfo("w", torch.bfloat16, None, "relative", pieces << 20),)
    payload = [low] * (2 * pieces) + [one] * pieces
    header = Header(pieces << 20, lines, (), (), (), chunks=tuple(len(chunk) for chunk in payload))
    frame = seal("patch", "relative", Digests(DIGEST, DIGEST), header.write(), payload, 1)
    assert len(frame) < 1 << 17
    tracemalloc.start()
    try:
        assert moves(frame) == {1: pieces << 20}
        assert tracemalloc.get_traced_memory()[1] < 32 << 20  # the streams are 768 MiB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", [(1 << 60, 1 << 60, 0), (0, 1 << 60, 1 << 60), (1 << 59, 0, 1 << 59), (0, 1 << 60)])
def test_an_empty_tensor_of_immense_shape_is_refused(shape):
    header = replace(EMPTY, whole=(line("c", "raw", 0, torch.float64, shape),))
    with pytest.raises(FrameError, match="0 elements in the shape"):
        decode_anchor(header_frame(header, encoding="raw", kind="anchor"))


def test_an_anchor_that_names_a_base_is_refused():
    envelope = unseal(ANCHORS["raw"])
    target = envelope.digests.target
    for digests in (Digests(DIGEST, target), Digests("", target, "1" * 32)):
        forged = seal("anchor", "raw", digests, envelope.header, [bytes(envelope.payload)], 1)
        with pytest.raises(FrameError, match="is an anchor and names a base"):
            inspect(forged)


def test_an_anchor_beyond_the_limit_is_refused_before_it_is_allocated():
    frame = encode_anchor({"w": torch.zeros(1 << 20)})
    with pytest.raises(FrameError, match="the limit is 1000000"):
        decode_anchor(frame, limit=1_000_000)
    assert decode_anchor(frame, limit=1 << 22)["w"].numel() == 1 << 20


def test_kinds_versions_and_magic_are_refused_by_name():
    frame = bytearray(FRAMES["relative"])
    with pytest.raises(FrameError, match="a patch is needed"):
        decode(ANCHORS["raw"], BASE)
    with pytest.raises(FrameError, match="an anchor is needed"):
        decode_anchor(bytes(frame))
    for place, value, message in [
        (0, 0, "begin with"),
        (8, 3, "format version 3"),
        (8, 0, "format version 0"),
        (10, 3, "kind 3"),
        (11, 9, "encoding 9"),
    ]:
        harmed = bytearray(frame[:-32])
        harmed[place] = value
        with pytest.raises(FrameError, match=message):
            inspect(signed(harmed))
    harmed = bytearray(frame[:-32])
    harmed[10] = 2
    with pytest.raises(FrameError, match="kind 2 with encoding 2"):
        inspect(signed(harmed))


def test_an_anchor_of_another_state_than_it_names_is_refused():
    envelope = unseal(ANCHORS["raw"])
    payload = bytes([envelope.payload[0] ^ 1]) + bytes(envelope.payload[1:])
    forged = seal("anchor", "raw", Digests("", envelope.digests.target), envelope.header, [payload], 1)
    with pytest.raises(FrameError, match="do not have the state digest"):
        decode_anchor(forged)
    assert state_digest(decode_anchor(forged, verify=False)) != state_digest(BASE)


def published_frame(raw):
    payload = zstandard.ZstdCompressor(level=1).compress(raw)
    lines = tuple(line(part.name, "published", part.positions.size, BASE[part.name].dtype) for part in PATCH.tensors)
    return header_frame(replace(EMPTY, tensors=lines), [payload], "published")


@pytest.mark.parametrize(
    ("old", "fresh", "message"),
    [
        (b'"version":31', b'"version":32', "version 32"),
        (b'"version":31', b'"version":3!', "malformed"),
        (b'"num_nonzero":3', b'"num_nonzero":4', "do not fit together"),
        (b'"rows_size":3', b'"rows_size":2', "do not fit together"),
        (b'"indices_offset":0', b'"indices_offset":1', "do not fit together"),
        (b'"row_dtype":"uint8"', b'"row_dtype":"uint9"', "malformed"),
        (b'"name":"a"', b'"name":"b"', "unlike the base"),
        (b'"name":"a"', b'"nome":"a"', "malformed"),
        (b'"shape":[12,11]', b'"shape":[11,12]', "unlike the base"),
        (b'"value_dtype":"bfloat16"', b'"value_dtype":"float16x"', "another dtype"),
        (b'"tensors":[', b'"tansors":[', "malformed"),
    ],
)
def test_a_lying_published_payload_is_refused_by_name(old, fresh, message):
    raw = pack_published(PATCH, BASE)
    assert old in raw
    with pytest.raises(FrameError, match=message):
        decode(published_frame(raw.replace(old, fresh, 1)), BASE, base_digest=DIGEST)


def test_published_data_that_is_cut_long_or_leads_out_is_refused():
    raw = pack_published(PATCH, BASE)
    with pytest.raises(FrameError, match="are cut"):
        decode(published_frame(raw[:-1]), BASE, base_digest=DIGEST)
    with pytest.raises(FrameError, match="bytes too many"):
        decode(published_frame(raw + b"\0"), BASE, base_digest=DIGEST)
    with pytest.raises(FrameError, match="header of"):
        decode(published_frame(b"\xff\xff\xff\x7f" + raw[4:]), BASE, base_digest=DIGEST)
    data = 4 + int.from_bytes(raw[:4], "little")
    harmed = bytearray(raw)
    harmed[data] = 200
    with pytest.raises(FrameError, match="leads beyond tensor 'a'"):
        decode(published_frame(bytes(harmed)), BASE, base_digest=DIGEST)


def test_a_published_header_beyond_what_its_base_needs_is_refused_before_it_is_read():
    bomb = b"[" + b"[]," * (1 << 23) + b"[]]"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FrameError, match="a larger one than its base allows"):
        decode(published_frame(len(bomb).to_bytes(4, "little") + bomb), BASE, base_digest=DIGEST)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB: the lists would take 600 MiB


@given(st.data())
@settings(max_examples=200)
def test_a_forged_published_payload_is_read_or_refused(data):
    raw = bytearray(pack_published(PATCH, BASE))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        patch = decode(published_frame(bytes(raw)), BASE, base_digest=DIGEST)
    except FrameError:
        return
    assert [part.name for part in patch.tensors] == ["a", "b"]


CONTEXT = unseal(encode(PATCH, BASE, "context"))
CONTEXT_HEADER = inspect(FRAMES["context"]).header


def context_frame(header=CONTEXT_HEADER, payload=None):
    digests = Digests(DIGEST, PATCH.target_digest)
    return seal(
        "patch", "context", digests, header.write(), [bytes(CONTEXT.payload) if payload is None else payload], 1
    )


def with_model(**fields):
    first, *rest = CONTEXT_HEADER.models
    return replace(CONTEXT_HEADER, models=(replace(first, **fields), *rest))


def with_segment(**fields):
    first, *rest = CONTEXT_HEADER.segments
    return replace(CONTEXT_HEADER, segments=(replace(first, **fields), *rest))


FIRST = CONTEXT_HEADER.models[0]
CROOKED = {
    "no models": (replace(CONTEXT_HEADER, models=()), "models count"),
    "a model twice": (replace(CONTEXT_HEADER, models=(FIRST, *CONTEXT_HEADER.models)), "models count"),
    "another count": (with_model(move_counts=FIRST.move_counts * 2), "models count"),
    "no segments": (replace(CONTEXT_HEADER, segments=()), "segments"),
    "a segment of other changes": (with_segment(changed=2), "other changes"),
    "odd tokens": (with_segment(token_bytes=5), "5 bytes of tokens"),
    "too few tokens": (with_segment(token_bytes=2), "2 bytes of tokens"),
    "longer tokens": (with_segment(token_bytes=1 << 40), "the payload has"),
    "buckets without a table": (with_model(gap_groups=FIRST.gap_groups[:-1] + (0,)), "cover"),
}


@pytest.mark.parametrize("case", CROOKED)
def test_a_lying_model_or_segment_is_refused_by_name(case):
    header, message = CROOKED[case]
    with pytest.raises(FrameError, match=message):
        decode(context_frame(header), BASE, base_digest=DIGEST)


@given(st.data())
@settings(max_examples=300)
def test_forged_tokens_are_read_or_refused(data):
    payload = bytearray(CONTEXT.payload)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        patch = decode(context_frame(payload=bytes(payload)), BASE, base_digest=DIGEST)
    except FrameError:
        return
    assert [part.name for part in patch.tensors] == ["a", "b"]


@given(st.data())
@settings(max_examples=300)
def test_forged_tables_are_read_or_refused(data):
    """Other counts with the same sums: the tokens then mean something else, and lead nowhere outside the tensors."""
    fields = {}
    for kind in ("gap_counts", "move_counts"):
        counts = getattr(FIRST, kind).copy()
        for _ in range(data.draw(st.integers(1, 3))):
            row = counts[data.draw(st.integers(0, len(counts) - 1))]
            row[data.draw(st.sampled_from(np.flatnonzero(row).tolist()))] -= 1
            row[data.draw(st.integers(0, 255))] += 1
        if not all(row.any() for row in counts):
            return
        fields[kind] = counts
    with suppress(FrameError):
        decode(context_frame(with_model(**fields)), BASE, base_digest=DIGEST)


def test_version_1_knows_no_context_coding():
    frame = bytearray(FRAMES["context"])
    fixed, running, rest = frame[:92], frame[92:124], frame[124:-32]
    assert len(running) == 32
    fixed[8] = 1
    with pytest.raises(FrameError, match="does not know"):
        inspect(signed(fixed + rest))
