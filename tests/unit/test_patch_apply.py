"""What apply promises: all or nothing, in place or a copy, ties, schema changes, refusals by name."""

import dataclasses
import struct

import numpy as np
import pytest
import torch
from blake3 import blake3

from thinwire.patch import FrameError, Patch, apply, decode, diff, encode, state_digest
from thinwire.patch import patch as patch_module
from thinwire.patch.bits import bits_of, same_memory
from thinwire.patch.digest import digest_tree
from thinwire.patch.patch import TensorPatch


def version(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(7, 5, generator=generator).bfloat16(),
        "norm": torch.randn(5, generator=generator),
        "scale": torch.tensor(1.5),
        "step": torch.tensor([3, 4], dtype=torch.int64),
    }


def moved(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    result = {name: tensor.clone() for name, tensor in state.items()}
    bits_of(result["embed"])[[0, 3, 34]] += np.uint16(1)
    bits_of(result["scale"])[0] ^= np.uint32(1 << 31)
    return result


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert list(a) == list(b)
    for name, tensor in a.items():
        assert (tensor.dtype, tensor.shape) == (b[name].dtype, b[name].shape), name
        np.testing.assert_array_equal(bits_of(tensor), bits_of(b[name]), err_msg=name)


def test_a_version_against_itself_is_an_empty_patch():
    state = version()
    patch = diff(state, {name: tensor.clone() for name, tensor in state.items()})
    assert patch.changed == 0
    assert patch.tensors == ()
    assert patch.base_digest == patch.target_digest == state_digest(state)
    assert patch.total == 7 * 5 + 5 + 1 + 2
    assert_same(apply(state, patch), state)


def test_signed_zero_and_nan_payload_are_changes_and_equal_nans_are_none():
    base = {"w": torch.tensor([0.0, float("nan"), float("nan")])}
    target = {"w": base["w"].clone()}
    bits_of(target["w"])[:2] ^= np.array([1 << 31, 1], dtype=np.uint32)
    patch = diff(base, target)
    assert patch.tensors[0].positions.tolist() == [0, 1]
    assert_same(apply(base, patch), target)


def test_a_copy_shares_nothing_with_the_base():
    base = version()
    before = {name: tensor.clone() for name, tensor in base.items()}
    result = apply(base, diff(base, moved(base)))
    for tensor in result.values():
        tensor.zero_()
    assert_same(base, before)


def test_in_place_writes_where_the_tensors_lie():
    base, target = version(), moved(version())
    places = {name: tensor.data_ptr() for name, tensor in base.items()}
    held = base["embed"]
    result = apply(base, diff(base, target), in_place=True)
    assert result is base
    assert {name: tensor.data_ptr() for name, tensor in base.items()} == places
    assert held is base["embed"]
    assert_same(base, target)


def test_in_place_reaches_through_transposed_and_strided_views():
    memory = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    base = {"w": memory[:, ::2].T}
    target = {"w": base["w"].clone()}
    target["w"][1, 2] = -5.0
    apply(base, diff(base, target), in_place=True)
    assert memory[2, 2] == -5.0
    assert_same({"w": base["w"].contiguous()}, {"w": target["w"].contiguous()})


def test_schema_changes_are_carried():
    base = version()
    target = moved(base)
    del target["norm"]
    target["step"] = target["step"].to(torch.int32)
    target["embed"] = target["embed"].reshape(5, 7)
    target["added"] = torch.tensor([True, False])
    patch = diff(base, target)
    assert sorted(patch.whole) == ["added", "embed", "step"]
    assert patch.removed == ("norm",)
    frame = encode(patch, base)
    result = apply(base, decode(frame, base))
    assert list(result) == ["embed", "scale", "step", "added"]
    assert state_digest(result) == patch.target_digest == state_digest(target)
    apply(base, decode(frame, base), in_place=True)
    assert state_digest(base) == patch.target_digest


def test_tied_tensors_are_patched_once_and_stay_tied():
    weight = torch.randn(6, 4)
    base = {"head": weight, "embed": weight}
    fresh = weight.clone()
    fresh[2, 2] = 9.0
    patch = diff(base, {"head": fresh, "embed": fresh})
    assert [part.name for part in patch.tensors] == ["embed"]
    assert patch.changed == 1
    assert patch.total == 24
    assert patch.ties == (("embed", "head"),)
    result = apply(base, decode(encode(patch, base), base))
    assert same_memory(result["head"]) == same_memory(result["embed"])
    assert result["head"][2, 2] == 9.0
    apply(base, patch, in_place=True)
    assert weight[2, 2] == 9.0
    assert same_memory(base["head"]) == same_memory(base["embed"]) == same_memory(weight)


@pytest.mark.parametrize("in_place", [False, True])
def test_ties_begin_and_end(in_place):
    shared = torch.randn(3, 3)
    tied = {"a": shared, "b": shared}
    untied = {"a": torch.zeros(3, 3), "b": torch.ones(3, 3)}
    freed = apply(dict(tied), diff(tied, untied), in_place=in_place)
    assert_same(freed, untied)
    assert same_memory(freed["a"]) != same_memory(freed["b"])
    fresh = torch.full((3, 3), 2.0)
    joined = apply(dict(untied), diff(untied, {"a": fresh, "b": fresh}), in_place=in_place)
    assert same_memory(joined["a"]) == same_memory(joined["b"])
    assert joined["b"][0, 0] == 2.0


@pytest.mark.parametrize("fresh", [torch.zeros(4), torch.zeros(3, 3, dtype=torch.float64)])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_tie_ends_where_one_of_its_names_is_carried_whole(in_place, fresh):
    shared = torch.randn(3, 3)
    target = {"a": shared + 1, "b": fresh}
    base = {"a": shared.clone()}
    base["b"] = base["a"]
    assert_same(apply(base, diff(base, target), in_place=in_place), target)


def test_a_tie_is_carried_by_the_name_that_the_base_has():
    base = {"z": torch.randn(50)}
    fresh = base["z"].clone()
    fresh[7] += 1
    patch = diff(base, {"a": fresh, "z": fresh})
    assert patch.ties == (("z", "a"),)
    assert not patch.whole
    assert patch.changed == 1
    result = apply(base, patch)
    assert same_memory(result["a"]) == same_memory(result["z"])


def test_another_base_is_refused_and_nothing_written():
    base, target = version(), moved(version())
    patch = diff(base, target)
    other = version(1)
    before = state_digest(other)
    for in_place in (False, True):
        with pytest.raises(FrameError, match="wrong base"):
            apply(other, patch, in_place=in_place)
    with pytest.raises(FrameError, match="wrong base"):
        decode(encode(patch, base), other)
    assert state_digest(other) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensors": (TensorPatch("absent", np.array([0]), np.array([0], np.uint16)),)}, "missing from the base"),
        ({"tensors": (TensorPatch("embed", np.array([35]), np.array([0], np.uint16)),)}, "does not ascend"),
        ({"tensors": (TensorPatch("embed", np.array([-1]), np.array([0], np.uint16)),)}, "does not ascend"),
        ({"tensors": (TensorPatch("embed", np.array([3, 3]), np.array([0, 0], np.uint16)),)}, "does not ascend"),
        ({"tensors": (TensorPatch("embed", np.array([3]), np.array([0], np.uint32)),)}, "its patch brings"),
        ({"tensors": (TensorPatch("embed", np.array([3]), np.array([0, 1], np.uint16)),)}, "1 positions for 2"),
        (
            {"tensors": (TensorPatch("norm", np.array([3]), np.array([0], np.uint32)),) * 2},
            "not in name order, or one is named twice",
        ),
        ({"removed": ("absent",)}, "not in the base"),
        ({"removed": ("embed",)}, "removed as well"),
        ({"ties": (("embed",),)}, "fewer than two"),
        ({"ties": (("embed", "embed"),)}, "repeats a name"),
        ({"ties": (("absent", "x"),)}, "neither in the base"),
        ({"ties": (("norm", "embed"),)}, "under a second name"),
    ],
)
def test_parts_that_do_not_fit_are_refused_before_any_write(change, message):
    base = version()
    patch = dataclasses.replace(diff(base, moved(base)), **change)
    before = state_digest(base)
    for in_place in (False, True):
        with pytest.raises(FrameError, match=message):
            apply(base, patch, in_place=in_place)
    assert state_digest(base) == before


def test_memory_that_can_not_be_patched_in_place_is_refused():
    expanded = {"w": torch.zeros(1).expand(4)}
    with pytest.raises(FrameError, match="expanded view"):
        apply(expanded, diff(expanded, {"w": torch.tensor([0.0, 1.0, 0.0, 0.0])}), in_place=True)
    assert_same(apply(expanded, diff(expanded, {"w": torch.arange(4.0)})), {"w": torch.arange(4.0)})
    memory = torch.zeros(8)
    overlapping = {"left": memory[:5], "right": memory[3:]}
    with pytest.raises(FrameError, match="overlap in memory"):
        apply(overlapping, diff(overlapping, {"left": torch.ones(5), "right": torch.zeros(5)}), in_place=True)
    assert memory.sum() == 0
    windows = {"w": torch.zeros(6).unfold(0, 3, 1)}
    with pytest.raises(FrameError, match="elements share memory"):
        apply(windows, diff(windows, {"w": torch.eye(4, 3)}), in_place=True)
    assert windows["w"].sum() == 0


def test_a_lazy_conjugate_or_negation_is_another_tensor_than_its_memory():
    memory = torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64)
    state = {"a": memory, "b": memory.conj(), "c": memory.imag, "d": memory.conj().imag}
    plain = {name: tensor.clone().resolve_conj().resolve_neg() for name, tensor in state.items()}
    assert state_digest(state) == state_digest(plain)
    assert diff(state, plain).ties == ()
    target = {name: tensor + 1 for name, tensor in plain.items()}
    patch = diff(state, target)
    assert_same(apply(state, patch), target)
    for name in "bd":
        one = {name: state[name]}
        with pytest.raises(FrameError, match="lazy conjugate or negation"):
            apply(one, diff(one, {name: target[name]}), in_place=True)
    assert state_digest(state) == state_digest(plain)


def test_parameters_of_a_module_are_patched_in_place():
    layer = torch.nn.Linear(3, 2)
    base = dict(layer.named_parameters())
    target = {name: tensor.detach() + 1 for name, tensor in base.items()}
    apply(base, diff(base, target), in_place=True)
    assert torch.equal(layer.weight, target["weight"])
    assert layer.weight.requires_grad


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_an_interruption_half_way_restores_every_bit(monkeypatch, stop_at):
    base, target = version(), moved(version())
    bits_of(target["norm"])[4] += np.uint32(1)
    patch = diff(base, target)
    assert len(patch.tensors) == 3
    before = state_digest(base)
    put, calls = patch_module._put, []

    def interrupted(tensor, positions, bits):
        calls.append(positions)
        put(tensor, positions, bits)
        if len(calls) == stop_at:
            raise KeyboardInterrupt

    monkeypatch.setattr(patch_module, "_put", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply(base, patch, in_place=True)
    assert state_digest(base) == before


def test_an_interruption_while_tensors_are_tied_restores_every_bit(monkeypatch):
    base = {"a": torch.zeros(5), "b": torch.zeros(5)}
    fresh = torch.ones(5)
    patch = diff(base, {"a": fresh, "b": fresh})
    before = state_digest(base)

    def interrupted(tensor):
        raise KeyboardInterrupt

    digest = patch.base_digest
    monkeypatch.setattr(patch_module, "same_memory", interrupted)
    with pytest.raises(KeyboardInterrupt):
        apply(base, patch, in_place=True, base_digest=digest)
    monkeypatch.undo()
    assert state_digest(base) == before


def test_digest_binds_name_dtype_shape_and_bits_but_not_order():
    base = {"a": torch.zeros(4), "b": torch.ones(2)}
    same = {"b": torch.ones(2), "a": torch.zeros(4)}
    others = [
        {"a": torch.zeros(4), "c": torch.ones(2)},
        {"a": torch.zeros(2, 2), "b": torch.ones(2)},
        {"a": torch.zeros(4, dtype=torch.int32), "b": torch.ones(2)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0]), "b": torch.ones(2)},
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4), "a": torch.ones(2)},
        {"a": torch.zeros(4), "b": torch.ones(2), "e": torch.empty(0)},
    ]
    digests = [state_digest(state) for state in [base, *others]]
    assert state_digest(same) == digests[0]
    assert len(set(digests)) == len(digests)
    assert all(len(digest) == 64 for digest in digests)


def test_digest_is_the_documented_hash():
    hasher = blake3(b"thinwire state digest 1\0")
    hasher.update(struct.pack("<IBI", 1, 11, 1) + b"a" + struct.pack("<Q", 4) + blake3(bytes(16)).digest())
    hasher.update(struct.pack("<IBI", 1, 10, 0) + b"b" + blake3(b"\x80\x3f").digest())
    state = {"b": torch.tensor(1.0, dtype=torch.bfloat16), "a": torch.zeros(4)}
    assert state_digest(state) == hasher.hexdigest()


def test_digest_tree_hashes_again_only_what_is_named():
    base = version()
    tree = digest_tree(base, threads=2)
    target = moved(base)
    target["added"] = torch.ones(1)
    del target["step"]
    assert tree.updated(target, ["embed", "scale"]).root == state_digest(target)
    assert tree.updated(target, ["embed"]).root != state_digest(target)


def test_trees_that_the_caller_holds_are_taken_as_they_are():
    base, target = version(), moved(version())
    patch = diff(base, target, base_tree=digest_tree(base), target_tree=digest_tree(target), threads=2)
    assert (patch.base_digest, patch.target_digest) == (state_digest(base), state_digest(target))


def test_a_dtype_that_no_frame_carries_is_refused_by_name():
    with pytest.raises(TypeError, match=r"'w' has dtype torch\.complex128"):
        state_digest({"w": torch.zeros(1, dtype=torch.complex128)})


def test_threads_below_one_are_refused():
    with pytest.raises(ValueError, match="at least 1"):
        diff({}, {}, threads=0)


def test_an_empty_state_has_a_digest_and_an_empty_patch():
    patch = diff({}, {})
    assert isinstance(patch, Patch)
    assert apply({}, decode(encode(patch, {}), {})) == {}
