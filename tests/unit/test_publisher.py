"""A publisher's base advances when a version is committed, and not a moment earlier."""

import pytest
import torch

from thinwire.patch import state_digest
from thinwire.sync import MemoryStore, Publisher, Subscriber, SyncError
from thinwire.sync.chain import committed_versions


def state_of(value, *, changed=5):
    """A kilobyte of which ``changed`` elements depend on ``value``."""
    weights = torch.arange(512, dtype=torch.float32).bfloat16()
    weights[:changed] += 1000 * (1 + value)
    return {"a.weight": weights, "b.weight": torch.ones(3, 2)}


class BrokenStore(MemoryStore):
    """Fails on demand: before a write, or after it."""

    fail_before = ""
    fail_after = ""

    def put(self, name, data):
        self._write(name, data, super().put)

    def create(self, name, data):
        self._write(name, data, super().create)

    def _write(self, name, data, write):
        if self.fail_before and name.startswith(self.fail_before):
            raise OSError("no space left on the device")
        write(name, data)
        if self.fail_after and name.startswith(self.fail_after):
            raise OSError("the connection was lost")


@pytest.mark.parametrize("point", ["frames/", "versions/"])
@pytest.mark.parametrize("first", [True, False])
def test_a_version_that_failed_is_contained_in_the_next(point, first):
    store = BrokenStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    if not first:
        publisher.publish(state_of(0))
    committed = committed_versions(store)
    store.fail_before = point
    with pytest.raises(OSError, match="no space left"):
        publisher.publish(state_of(1, changed=9))
    assert committed_versions(store) == committed
    store.fail_before = ""
    manifest = publisher.publish(state_of(2))
    assert manifest.version == len(committed)
    assert state_digest(Subscriber(store).pull()) == state_digest(state_of(2))


def test_a_version_whose_writer_only_seemed_to_fail_is_committed_once():
    store = BrokenStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    publisher.publish(state_of(0))
    store.fail_after = "versions/"
    assert publisher.publish(state_of(1)).version == 1
    store.fail_after = ""
    assert publisher.publish(state_of(2)).base_version == 1
    reader = Subscriber(store)
    for version in range(3):
        assert state_digest(reader.pull(version)) == state_digest(state_of(version))


def test_full_synchronisation_is_an_anchor_every_version_and_no_retained_copy():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=1, compress_anchors=False)
    manifests = [publisher.publish(state_of(value)) for value in range(3)]
    assert [manifest.kind for manifest in manifests] == ["anchor"] * 3
    assert all(manifest.full_bytes == 1024 + 24 <= manifest.frame_bytes for manifest in manifests)
    assert all(manifest.changed == manifest.total == 518 for manifest in manifests)
    assert publisher._base is None


def test_a_patch_counts_and_names_its_base():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=100, encoding="published")
    first = publisher.publish(state_of(0))
    manifest = publisher.publish(state_of(1))
    assert (manifest.kind, manifest.changed, manifest.total) == ("patch", 5, 518)
    assert (manifest.base_version, manifest.base_digest) == (0, first.digest)
    assert (manifest.encoding, manifest.full_bytes) == ("published", 1048)
    assert manifest.digest == state_digest(state_of(1))
    assert manifest.frame_bytes == len(store.get(manifest.frame)) < first.frame_bytes


def test_a_version_that_grows_beyond_its_base_is_still_a_patch():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    kept = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    publisher.publish({"kept": kept})
    manifest = publisher.publish({"kept": kept, "come": torch.zeros(5000)})
    assert (manifest.kind, manifest.changed, manifest.total) == ("patch", 5000, 6000)
    assert sorted(Subscriber(store).pull()) == ["come", "kept"]


def test_anchors_stand_beside_patches_at_their_cadence():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=3)
    manifests = [publisher.publish(state_of(value)) for value in range(8)]
    assert [manifest.kind for manifest in manifests] == ["anchor"] + ["patch"] * 7
    assert [manifest.version for manifest in manifests if manifest.anchor_frame] == [3, 6]
    store.delete(manifests[2].frame)  # no reader of version 3 or later needs it
    assert state_digest(Subscriber(store).pull(4)) == state_digest(state_of(4))


def test_a_patch_that_would_be_no_smaller_becomes_an_anchor():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    generator = torch.Generator().manual_seed(0)
    dense = [{"w": torch.randn(4096, generator=generator)} for _ in range(2)]
    assert [publisher.publish(state).kind for state in dense] == ["anchor", "anchor"]
    nearly = {"w": dense[1]["w"].clone()}
    nearly["w"][7] = 0.0
    assert publisher.publish(nearly).kind == "patch"


def test_a_restarted_run_goes_on_and_another_run_is_refused():
    store = MemoryStore()
    Publisher(store, run_id="run", anchor_every=100).publish(state_of(0))
    again = Publisher(store, run_id="run", anchor_every=100)
    assert [again.publish(state_of(value)).version for value in (1, 2)] == [1, 2]
    with pytest.raises(SyncError, match="the store holds versions of run 'run', not of 'other'"):
        Publisher(store, run_id="other", anchor_every=100)
    with pytest.raises(ValueError, match="anchor_every is 0 where 1 or more is needed"):
        Publisher(store, run_id="run", anchor_every=0)
    with pytest.raises(ValueError, match="run_id"):
        Publisher(MemoryStore(), run_id="a/b", anchor_every=1)


def test_of_two_publishers_one_commits_and_its_frames_stay():
    store = MemoryStore()
    Publisher(store, run_id="run", anchor_every=100).publish(state_of(0))
    stale = Publisher(store, run_id="run", anchor_every=100)
    fresh = Publisher(store, run_id="run", anchor_every=100)
    fresh.publish(state_of(1))
    with pytest.raises(SyncError, match=r"versions/0000000001.json is already in the store"):
        stale.publish(state_of(50))
    assert state_digest(Subscriber(store).pull(1)) == state_digest(state_of(1))
    assert fresh.publish(state_of(2)).version == 2


def test_a_number_that_was_retired_is_not_given_again():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=1)
    publisher.publish(state_of(0))
    stale = Publisher(store, run_id="run", anchor_every=1)
    for value in range(1, 4):
        publisher.publish(state_of(value))
    publisher.retire(3)
    before = store.names()
    with pytest.raises(SyncError, match="version 1 is refused: another publisher went on to version 3"):
        stale.publish(state_of(50))
    assert store.names() == before


def test_tied_tensors_count_once_and_stay_tied():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=100)
    for value in range(3):
        state = state_of(value)
        state["tied"] = state["a.weight"]
        manifest = publisher.publish(state)
        assert (manifest.full_bytes, manifest.total) == (1048, 518)
        held = Subscriber(store).pull()
        assert state_digest(held) == manifest.digest
        assert held["tied"].data_ptr() == held["a.weight"].data_ptr()


@pytest.mark.parametrize("encoding", ["auto", "context"])
def test_a_tied_tensor_may_change_its_shape(encoding):
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=10, encoding=encoding)
    subscriber = Subscriber(store)
    weight = torch.randn(50, 20)
    publisher.publish({"embed": weight, "head": weight})
    subscriber.pull()
    state = {"embed": weight.clone(), "head": torch.ones(7)}
    state["embed"][0, 0] += 1
    assert publisher.publish(state).kind == "patch"
    assert state_digest(subscriber.pull()) == state_digest(state)


def test_retiring_through_the_publisher_keeps_what_readers_need():
    store = MemoryStore()
    publisher = Publisher(store, run_id="run", anchor_every=2)
    for value in range(6):
        publisher.publish(state_of(value))
    assert publisher.retire(5) == [0, 1, 2, 3]
    assert state_digest(Subscriber(store).pull()) == state_digest(state_of(5))
    with pytest.raises(SyncError, match=r"versions/0000000003.json is not in the store"):
        Subscriber(store).pull(3)
