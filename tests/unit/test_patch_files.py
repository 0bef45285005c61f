"""Models on disk, mapped: every dtype, any alignment, harmed headers, patches in place, locks and undo records."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open
from safetensors.torch import load_file, save_file

from thinwire.patch import FrameError, Patch, apply, decode, diff, encode, encode_anchor, state_digest, undo
from thinwire.patch.bits import DTYPES as CARRIED
from thinwire.patch.bits import bits_of, empty_bits
from thinwire.patch.files import (
    DTYPES,
    MAX_HEADER_BYTES,
    build_header,
    hash_state,
    open_model,
    parse_header,
    undo_place,
)
from thinwire.patch.frame import inspect
from thinwire.patch.patch import TensorPatch

SHAPES = ((), (0,), (3, 0, 2), (1,), (7,), (5, 3, 2))


def random_tensor(dtype, shape, seed):
    tensor, bits = empty_bits(dtype, shape)
    raw = np.random.default_rng(seed).integers(0, 256, bits.nbytes, dtype=np.uint8)
    bits.view(np.uint8)[:] = raw & 1 if dtype == torch.bool else raw
    return tensor


def every_dtype():
    """A tensor of each dtype in each shape that a file can hold."""
    return {
        f"{dtype}{list(shape)}": random_tensor(dtype, shape, seed)
        for seed, (dtype, shape) in enumerate((d, s) for d in CARRIED for s in SHAPES)
        if dtype != torch.float4_e2m1fn_x2 or shape
    }


def write_file(path, state, *, shift=0, metadata=None):
    """Write ``state`` with a header that is ``shift`` bytes longer than an aligned one."""
    header, order = build_header(state, metadata)
    text = header[8:] + b" " * shift
    data = b"".join(bits_of(state[name]).tobytes() for name in order)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def assert_same(state, expected):
    assert sorted(state) == sorted(expected)
    for name, tensor in expected.items():
        assert state[name].dtype == tensor.dtype, name
        assert state[name].shape == tensor.shape, name
        np.testing.assert_array_equal(bits_of(state[name]), bits_of(tensor), err_msg=name)


def flipped(state, every=3):
    """A target in which one of ``every`` elements has another lowest bit."""
    target = {name: tensor.clone() for name, tensor in state.items()}
    for tensor in target.values():
        if tensor.numel():
            bits_of(tensor)[::every] ^= 1
    return target


def test_every_dtype_of_a_frame_has_its_word():
    assert set(DTYPES.values()) == set(CARRIED)
    assert len(DTYPES) == len(CARRIED)


def test_files_of_safetensors_are_mapped_as_it_reads_them(tmp_path):
    state = every_dtype()
    save_file(state, tmp_path / "m", metadata={"a": "b", "ä": "漢"})
    with open_model(tmp_path / "m") as model:
        assert model.shards[0].metadata == {"a": "b", "ä": "漢"}
        assert model.nbytes == sum(tensor.nbytes for tensor in state.values())
        mapped = model.state()
    assert_same(mapped, state)
    assert_same(mapped, load_file(tmp_path / "m"))
    assert state_digest(mapped) == state_digest(state) == hash_state(mapped).root


@pytest.mark.parametrize("dtype", CARRIED, ids=str)
def test_safetensors_reads_the_headers_written_here(tmp_path, dtype):
    state = {str(i): random_tensor(dtype, shape, i) for i, shape in enumerate(SHAPES) if shape}
    write_file(tmp_path / "m", state, metadata={"format": "pt"})
    assert_same(load_file(tmp_path / "m"), state)
    with safe_open(tmp_path / "m", framework="pt") as source:
        assert source.metadata() == {"format": "pt"}


@pytest.mark.parametrize("shift", range(8))
def test_data_at_any_place_is_read_and_patched_exactly(tmp_path, shift):
    base = every_dtype()
    target = flipped(base)
    write_file(tmp_path / "base", base, shift=shift)
    write_file(tmp_path / "target", target, shift=shift)
    with open_model(tmp_path / "base") as old, open_model(tmp_path / "target") as fresh:
        held, wanted = old.state(), fresh.state()
        assert_same(held, base)
        frame = encode(diff(held, wanted), held)
        assert_same(apply(held, decode(frame, held)), target)
    assert undo.apply_in_place(tmp_path / "base", frame) == state_digest(target)
    assert (tmp_path / "base").read_bytes() == (tmp_path / "target").read_bytes()


def test_rows_that_begin_between_words_are_compared(tmp_path):
    """Two-byte elements after an odd number of others begin where no eight-byte word does."""
    base = {name: random_tensor(torch.bfloat16, (1001,), seed) for seed, name in enumerate("abcd")}
    target = flipped(base, every=17)
    write_file(tmp_path / "base", base)
    write_file(tmp_path / "target", target)
    with open_model(tmp_path / "base") as old, open_model(tmp_path / "target") as fresh:
        held, wanted = old.state(), fresh.state()
        assert {tensor.data_ptr() % 8 for tensor in held.values()} == {0, 2, 4, 6}
        patch = diff(held, wanted)
        assert [part.positions.tolist() for part in patch.tensors] == [list(range(0, 1001, 17))] * 4
        for encoding in ("absolute", "relative", "dense", "published", "auto"):
            assert_same(apply(held, decode(encode(patch, held, encoding), held)), target)


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HARMED = {
    "empty": (b"", "too few"),
    "cut length": (b"\x08\0\0", "too few"),
    "longer than the file": ((100).to_bytes(8, "little") + b"{}", "declares a header of 100 bytes and has 10"),
    "bomb": ((1 << 63).to_bytes(8, "little") + b"{}", "at most 100000000 are allowed"),
    "just too long": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "at most 100000000 are allowed"),
    "no object": (b"[]", "does not begin with '{'"),
    "no JSON": (b"{,}", "is no JSON"),
    "no UTF-8": (b'{"\xff":1}', "is no JSON"),
    "cut": (b'{"a":', "is no JSON"),
    "deep": (b'{"a":' + b"[" * 100_000, "nested too deeply"),
    "NaN": (b'{"a":NaN}', "holds NaN"),
    "many digits": (b'{"a":' + b"9" * 10_000 + b"}", "no sound safetensors file"),
    "twice": (b'{"a":1,"a":1}', "names 'a' twice"),
    "metadata": ({"__metadata__": {"a": 1}}, "no table of texts"),
    "no entry": ({"a": 1}, "needs dtype, shape and data_offsets"),
    "too few fields": ({"a": {"dtype": "U8", "shape": [0]}}, "needs dtype, shape and data_offsets"),
    "dtype": ({"a": entry("F6_E2M3")}, "dtype 'F6_E2M3', which torch does not hold"),
    "no dtype": ({"a": entry(["U8"])}, "which torch does not hold"),
    "negative": ({"a": entry(shape=(-4,))}, "are no sizes"),
    "truth": ({"a": entry(shape=(True,))}, "are no sizes"),
    "fraction": ({"a": entry(offsets=(0, 4.0))}, "are no sizes"),
    "three offsets": ({"a": entry(offsets=(0, 4, 4))}, "are no sizes"),
    "dimensions": ({"a": entry(shape=(1,) * 65)}, "are no sizes"),
    "overflow": ({"a": entry(shape=(0, 1 << 62, 4), offsets=(0, 0))}, "too large"),
    "surrogate": (b'{"\\ud800":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}', "no text"),
    "half bytes": ({"a": entry("F4", shape=(7,))}, "half bytes do not fill"),
    "size": ({"a": entry(shape=(5,))}, "of 5 bytes has data_offsets [0, 4]"),
    "backwards": ({"a": entry(offsets=(4, 0))}, "has data_offsets [4, 0]"),
    "hole before": ({"a": entry(offsets=(1, 5))}, "begins at 1 where the one before ends at 0"),
    "overlap": ({"a": entry(), "b": entry(offsets=(2, 6))}, "begins at 2 where the one before ends at 4"),
    "same place": ({"a": entry(), "b": entry()}, "begins at 0 where the one before ends at 4"),
    "beyond the end": ({"a": entry(), "b": entry(offsets=(4, 8))}, "cut or extended"),
    "bytes too many": ({"a": entry(shape=(3,), offsets=(0, 3))}, "cut or extended"),
    "no tensors": ({}, "cut or extended"),
}


@pytest.mark.parametrize("harm", HARMED)
def test_a_harmed_header_is_one_refusal(tmp_path, harm):
    text, message = HARMED[harm]
    if isinstance(text, dict):
        text = json.dumps(text).encode()
    whole = text[:1] not in (b"{", b"[")
    (tmp_path / "m").write_bytes(text if whole else len(text).to_bytes(8, "little") + text + b"data")
    with pytest.raises(ValueError, match="no sound safetensors file") as caught, open_model(tmp_path / "m"):
        pass
    assert message in str(caught.value)


SOUND, _ = build_header({"a": torch.ones(2, 3), "b": torch.ones(0), "c": torch.ones(())}, {"k": "v"})


@given(
    st.lists(st.tuples(st.integers(0, len(SOUND) - 9), st.sampled_from(b'{}[]",:0123456789abFIU81_ \xff')), max_size=3),
    st.integers(-1, 1),
)
@settings(max_examples=400)
def test_what_is_read_here_is_read_by_safetensors_alike(changes, more):
    """Harmed headers: refused here by ValueError, or else read with the same names, shapes and places."""
    text = bytearray(SOUND[8:])
    for place, value in changes:
        text[place] = value
    data = b"x" * (28 + more)
    try:
        _, lines = parse_header(bytes(text), 8 + len(text) + len(data))
    except ValueError:
        return
    try:
        known = dict(deserialize(len(text).to_bytes(8, "little") + bytes(text) + data))
    except SafetensorError as error:
        pytest.fail(f"{bytes(text)} is read here, and not by safetensors: {error}")
    assert sorted(known) == sorted(line.name for line in lines)
    for line in lines:
        assert known[line.name]["shape"] == list(line.shape)
        assert len(known[line.name]["data"]) == line.nbytes


def test_the_smallest_sound_files_are_read(tmp_path):
    (tmp_path / "none").write_bytes((2).to_bytes(8, "little") + b"{}")
    (tmp_path / "null").write_bytes((21).to_bytes(8, "little") + b'{"__metadata__":null}')
    for name in ("none", "null"):
        with open_model(tmp_path / name) as model:
            assert model.state() == {}


def test_what_no_file_can_hold_is_refused():
    with pytest.raises(ValueError, match="named '__metadata__'"):
        build_header({"__metadata__": torch.ones(1)}, None)
    with pytest.raises(ValueError, match="zero-dimensional F4"):
        build_header({"a": random_tensor(torch.float4_e2m1fn_x2, (), 0)}, None)


def test_a_map_for_reading_never_reaches_the_file(tmp_path):
    save_file({"w": torch.zeros(5000)}, tmp_path / "m")
    before = (tmp_path / "m").read_bytes()
    with open_model(tmp_path / "m") as model:
        model.state()["w"].fill_(1)
        with pytest.raises(ValueError, match="read-only"):
            model.row("w")[0] = 1
    assert (tmp_path / "m").read_bytes() == before


def test_tensors_outlive_the_block_and_the_lock_does_not(tmp_path):
    save_file({"w": torch.arange(5)}, tmp_path / "m")
    with open_model(tmp_path / "m") as model:
        state = model.state()
        with pytest.raises(ValueError, match="in use by another process"), open_model(tmp_path / "m", write=True):
            pass
        with open_model(tmp_path / "m"):
            pass
    with open_model(tmp_path / "m", write=True):
        with pytest.raises(ValueError, match="being patched by another process"), open_model(tmp_path / "m"):
            pass
        assert state["w"].tolist() == [0, 1, 2, 3, 4]


@pytest.fixture
def pair(tmp_path):
    """A base in two shards and a frame that leads to a target, beside the target's files."""
    base = {name: random_tensor(torch.bfloat16, (300, 7), seed) for seed, name in enumerate("abc")}
    target = flipped(base)
    for word, state in (("base", base), ("target", target)):
        (tmp_path / word).mkdir()
        save_file({name: state[name] for name in "ab"}, tmp_path / word / "1.safetensors", metadata={"x": "y"})
        save_file({"c": state["c"]}, tmp_path / word / "2.safetensors")
    return tmp_path, encode(diff(base, target), base)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("verify", [True, False])
def test_a_patch_in_place_gives_the_bytes_of_the_target(pair, verify):
    folder, frame = pair
    done = []
    assert (
        undo.apply_in_place(folder / "base", frame, verify=verify, advance=done.append) == inspect(frame).target_digest
    )
    assert contents(folder / "base") == contents(folder / "target")
    assert sum(done) == 3 * 300 * 7 * 2 * (3 if verify else 2)


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_failure_at_any_step_puts_the_old_bits_back(pair, monkeypatch, failure):
    folder, frame = pair
    before, after = contents(folder / "base"), contents(folder / "target")
    seen = []
    for stop in range(1, 100):
        seen.clear()

        def step(name, stop=stop):
            seen.append(name)
            if len(seen) == stop:
                raise failure("enough")

        monkeypatch.setattr(undo, "_step", step)
        try:
            undo.apply_in_place(folder / "base", frame)
        except failure:
            assert contents(folder / "base") == (
                after if seen[-1] == "record removed" and stop == len(seen) else before
            )
            if contents(folder / "base") == after:
                break
    assert stop == len(seen) > 8
    assert undo.restore(folder / "base") is None


def test_a_failure_while_the_bits_are_put_back_leaves_the_record(pair, monkeypatch):
    folder, frame = pair
    before = contents(folder / "base")

    def step(name):
        if name == "wrote b":
            raise RuntimeError("enough")

    monkeypatch.setattr(undo, "_step", step)
    with pytest.raises(RuntimeError, match="enough"):
        undo.apply_in_place(folder / "base", frame)
    assert undo_place(folder / "base").exists()
    with pytest.raises(ValueError, match="thinwire restore"):
        undo.apply_in_place(folder / "base", frame)
    monkeypatch.undo()
    assert undo.restore(folder / "base") == (folder / "base", inspect(frame).base_digest)
    assert contents(folder / "base") == before


def half_written(folder, frame, monkeypatch):
    """Leave the base in ``folder`` with its record and all bits of the target."""
    with monkeypatch.context() as patched:
        patched.setattr(undo, "_remove_record", lambda record: None)
        undo.apply_in_place(folder / "base", frame)


def test_an_undo_record_is_a_frame_that_leads_back(pair, monkeypatch):
    folder, frame = pair
    half_written(folder, frame, monkeypatch)
    record = undo_place(folder / "base").read_bytes()
    info = inspect(record)
    assert (info.kind, info.encoding) == ("patch", "absolute")
    assert (info.base_digest, info.target_digest) == (inspect(frame).target_digest, inspect(frame).base_digest)
    with open_model(folder / "target") as model:
        state = model.state()
        assert state_digest(apply(state, decode(record, state))) == info.target_digest


def test_a_model_that_another_program_wrote_to_is_not_restored(pair, monkeypatch):
    folder, frame = pair
    half_written(folder, frame, monkeypatch)
    file = folder / "base" / "2.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    data[-3] ^= 1
    data[-5] ^= 1
    file.write_bytes(data)
    torn = contents(folder / "base")
    with pytest.raises(ValueError, match="another program wrote to it since; nothing was written"):
        undo.restore(folder / "base")
    assert contents(folder / "base") == torn


def test_a_harmed_record_is_refused(pair, monkeypatch):
    folder, frame = pair
    half_written(folder, frame, monkeypatch)
    record = undo_place(folder / "base")
    record.write_bytes(record.read_bytes()[:-1])
    with pytest.raises(FrameError, match="cut or extended"):
        undo.restore(folder / "base")
    with open_model(folder / "target") as model:
        state = model.state()
        back = decode(frame_back(state, frame, folder), state)
        record.write_bytes(encode(back, state, "relative"))
    with pytest.raises(FrameError, match="does not hold plain bits"):
        undo.restore(folder / "base")


def frame_back(state, frame, folder):
    base = {**load_file(folder / "base" / "1.safetensors"), **load_file(folder / "base" / "2.safetensors")}
    return encode(diff(state, flipped(base)), state)


def test_a_frame_whose_target_digest_lies_is_refused_before_anything_is_written(pair):
    folder, _ = pair
    before = contents(folder / "base")
    with open_model(folder / "base") as model:
        state = model.state()
        part = TensorPatch("a", np.array([3]), np.array([1], dtype=np.uint16))
        frame = encode(Patch(state_digest(state), "ab" * 32, 6300, (part,)), state)
    with pytest.raises(FrameError, match="leads to another state than the abababab"):
        undo.apply_in_place(folder / "base", frame)
    assert contents(folder / "base") == before


def test_an_anchor_and_a_wrong_base_are_refused(pair):
    folder, frame = pair
    before = contents(folder / "target")
    with pytest.raises(FrameError, match="wrong base"):
        undo.apply_in_place(folder / "target", frame)
    with pytest.raises(FrameError, match="is an anchor"):
        undo.apply_in_place(folder / "target", encode_anchor({"a": torch.ones(1)}))
    assert contents(folder / "target") == before


def test_a_file_with_a_second_name_is_not_patched_in_place(pair):
    folder, frame = pair
    shutil.copytree(folder / "base", folder / "linked")
    file = folder / "linked" / "1.safetensors"
    file.unlink()
    file.symlink_to(folder / "base" / "1.safetensors")
    with pytest.raises(ValueError, match="is a symbolic link"):
        undo.apply_in_place(folder / "linked", frame)
    file.unlink()
    os.link(folder / "base" / "1.safetensors", file)
    with pytest.raises(ValueError, match=r"has 2 names \(hard links\)"):
        undo.apply_in_place(folder / "linked", frame)
    file.unlink()
    (folder / "short").symlink_to(folder / "base")
    assert undo.apply_in_place(folder / "short", frame) == inspect(frame).target_digest
    assert contents(folder / "base") == contents(folder / "target")


def test_a_patch_without_changes_is_applied_in_place(pair):
    folder, _ = pair
    with open_model(folder / "base") as model:
        state = model.state()
        frame = encode(diff(state, state), state)
    assert undo.apply_in_place(folder / "base", frame) == inspect(frame).base_digest
