"""A subscriber holds a version that it verified, or says by name what it refused."""

import dataclasses

import pytest
import torch

from thinwire.patch import state_digest
from thinwire.sync import MemoryStore, Publisher, Subscriber, SyncError
from thinwire.sync.chain import manifest_name, read_manifest


def state_of(value):
    weights = torch.arange(512, dtype=torch.float32).bfloat16()
    weights[value * 3 : value * 3 + 9] = -0.0
    return {"a.weight": weights, "b.weight": torch.full((3, 2), float(value))}


def published(count=4, **options):
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", **{"anchor_every": 100, **options})
    return store, [publisher.publish(state_of(value)) for value in range(count)]


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_an_empty_store_is_a_refusal():
    reader = Subscriber(MemoryStore())
    assert reader.version is None
    assert reader.latest() is None
    with pytest.raises(SyncError, match="the store holds no committed version"):
        reader.pull()


def test_the_state_is_patched_in_place_on_the_fast_path():
    store, manifests = published()
    reader = Subscriber(store)
    state = reader.pull(0)
    memory = {name: tensor.data_ptr() for name, tensor in state.items()}
    store.delete(manifests[0].frame)
    for version in (1, 3):
        assert reader.pull(version) is state
        assert state_digest(state) == manifests[version].digest
    assert {name: tensor.data_ptr() for name, tensor in state.items()} == memory
    assert reader.pull() is state
    assert reader.version == 3
    assert reader.manifest == manifests[3]


@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("harm", ["cut", "extended", "first", "middle", "last", "missing"])
def test_a_harmed_frame_is_refused_by_name_and_the_held_version_stays(version, harm):
    store, manifests = published()
    reader = Subscriber(store)
    state = reader.pull(0)
    name = manifests[version].frame
    frame = store.get(name)
    if harm == "missing":
        store.delete(name)
    else:
        at = {"first": 0, "middle": len(frame) // 2, "last": len(frame) - 1}
        store.put(name, {"cut": frame[:-1], "extended": frame + b"\0"}.get(harm) or flipped(frame, at[harm]))
    with pytest.raises(SyncError, match=name):
        reader.pull(3)
    assert reader.version == 0
    assert state_digest(state) == manifests[0].digest
    store.put(name, frame)
    assert state_digest(reader.pull(3)) == manifests[3].digest


def test_every_flipped_byte_of_an_anchor_is_refused():
    store, (manifest, *_) = published(1)
    frame = store.get(manifest.frame)
    for at in range(len(frame)):
        store.put(manifest.frame, flipped(frame, at))
        with pytest.raises(SyncError, match=manifest.frame):
            Subscriber(store).pull()


def test_another_frame_under_the_name_is_refused():
    store, manifests = published()
    store.put(manifests[2].frame, store.get(manifests[3].frame))
    with pytest.raises(SyncError, match=r"version 2 is refused"):
        Subscriber(store).pull(2)


def rewritten(manifest, **changes):
    return dataclasses.replace(manifest, **changes).to_json()


@pytest.mark.parametrize("held", [True, False])
def test_a_version_with_another_digest_is_refused_and_taken_back(held):
    store, manifests = published()
    reader = Subscriber(store)
    if held:
        state = reader.pull(1)
    lie = "ab" * 32
    store.put(manifest_name(3), rewritten(manifests[3], digest=lie))
    with pytest.raises(SyncError, match="version 3 is refused"):
        reader.pull()
    assert reader.version == (1 if held else None)
    if held:
        assert state_digest(state) == manifests[1].digest
    assert state_digest(reader.pull(2)) == manifests[2].digest


def test_an_anchor_with_another_digest_is_refused():
    store, (manifest, *_) = published(1)
    store.put(manifest_name(0), rewritten(manifest, digest="ab" * 32))
    with pytest.raises(SyncError, match="version 0 is refused"):
        Subscriber(store).pull()


@pytest.mark.parametrize(
    ("name", "place", "message"),
    [
        ("a.weight", 500, "the weights have state digest"),  # elsewhere than any patch writes
        ("b.weight", (0, 0), "the patch leads to running digest"),
    ],
)
def test_a_state_that_its_user_wrote_into_is_noticed_and_not_passed_on(name, place, message):
    store, manifests = published()
    reader = Subscriber(store)
    reader.pull(1)[name][place] = 7.0
    with pytest.raises(SyncError, match=f"version 2 is refused: .*{message}"):
        reader.pull(2)
    assert reader.version is None
    assert state_digest(reader.pull(2)) == manifests[2].digest


def test_all_weights_are_checked_as_often_as_asked():
    store, manifests = published(count=6)
    reader = Subscriber(store, check_every=3)
    reader.pull(0)["a.weight"][500] = 7.0
    for version in (1, 2):
        assert state_digest(reader.pull(version)) != manifests[version].digest
    with pytest.raises(SyncError, match="version 3 is refused: the weights have state digest"):
        reader.pull(3)
    for version in (3, 4, 5):
        assert state_digest(reader.pull(version)) == manifests[version].digest


def test_a_check_at_will_names_what_is_wrong():
    store, manifests = published()
    reader = Subscriber(store, check_every=100)
    with pytest.raises(SyncError, match="no version is held"):
        reader.check()
    reader.pull(0)
    reader.pull(1)["a.weight"][500] = 7.0
    with pytest.raises(SyncError, match="version 1 is refused"):
        reader.check()
    reader.pull(1)
    reader.check()
    assert reader.version == 1
    assert state_digest(reader.pull(2)) == manifests[2].digest


def test_a_check_that_never_comes_is_refused():
    with pytest.raises(ValueError, match="check_every is 0"):
        Subscriber(MemoryStore(), check_every=0)


def test_tensors_that_come_and_go_are_taken_back_too():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    big = torch.arange(5000.0)
    first = publisher.publish({"kept": big, "gone": torch.zeros(2)})
    reader = Subscriber(store)
    state = reader.pull()
    second = publisher.publish({"kept": big, "come": torch.ones(3)})
    assert second.kind == "patch"
    third = publisher.publish({"kept": big + 0.0, "come": torch.full((3,), 2.0)})
    store.put(manifest_name(2), rewritten(third, digest="ab" * 32))
    with pytest.raises(SyncError, match="version 2 is refused"):
        reader.pull()
    assert reader.version == 0
    assert state_digest(state) == first.digest
    assert sorted(reader.pull(1)) == ["come", "kept"]


def test_a_reader_of_a_rolled_back_store_takes_the_anchor():
    store, manifests = published()
    reader = Subscriber(store)
    reader.pull(3)
    other = MemoryStore()
    publisher = Publisher(other, run_id="run", anchor_every=100)
    replaced = [publisher.publish(state_of(value)) for value in (9, 8, 7, 6, 5)]
    reader.store = other
    assert state_digest(reader.pull(4)) == replaced[4].digest
    assert replaced[3].digest != manifests[3].digest
    assert read_manifest(other, 4).base_digest == replaced[3].digest
