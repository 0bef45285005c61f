"""A manifest is read strictly, and a route is chosen by bytes from manifests alone."""

import dataclasses
import json

import pytest

from thinwire.sync import Manifest, MemoryStore, MissingError, SyncError
from thinwire.sync.chain import Route, committed_versions, manifest_name, plan_route, read_manifest, retire

DIGEST = "0123456789abcdef" * 4


def digest_of(version):
    return f"{version:064x}"


def anchor(version, size=1000, **changes):
    fields = {
        "run_id": "run",
        "version": version,
        "kind": "anchor",
        "base_version": None,
        "frame": f"frames/{version:010d}-anchor-{DIGEST[:16]}",
        "frame_bytes": size,
        "frame_checksum": DIGEST,
        "full_bytes": 2000,
        "changed": 500,
        "total": 1000,
        "digest": digest_of(version),
        "base_digest": None,
        "encoding": "anchor",
    }
    return Manifest(**{**fields, **changes})


def patch(version, size=10, *, beside=None, **changes):
    fields = {
        "kind": "patch",
        "base_version": version - 1,
        "frame": f"frames/{version:010d}-patch-{DIGEST[:16]}",
        "base_digest": digest_of(version - 1),
        "encoding": "published",
    }
    if beside is not None:
        name = f"frames/{version:010d}-anchor-{DIGEST[:16]}"
        fields |= {"anchor_frame": name, "anchor_bytes": beside, "anchor_checksum": DIGEST}
    return anchor(version, size, **{**fields, **changes})


@pytest.mark.parametrize("manifest", [anchor(0), patch(7), patch(7, beside=900), patch(9_999_999_999)])
def test_a_manifest_survives_its_json(manifest):
    assert Manifest.from_json(manifest.to_json()) == manifest


@pytest.mark.parametrize(
    "change",
    [
        {"version": -1},
        {"version": 10**10},
        {"version": True},
        {"version": 7.0},
        {"version": "7"},
        {"kind": "delta"},
        {"kind": "anchor"},
        {"base_version": None},
        {"base_version": 7},
        {"base_digest": None},
        {"base_digest": "0" * 63},
        {"digest": "G" * 64},
        {"frame": "frames/../../etc/passwd"},
        {"frame": f"frames/{8:010d}-patch-{DIGEST[:16]}"},
        {"frame_bytes": -1},
        {"frame_bytes": 1 << 60},
        {"frame_checksum": ""},
        {"changed": 1001},
        {"run_id": ""},
        {"run_id": "a/b"},
        {"encoding": None},
        {"anchor_frame": f"frames/{7:010d}-anchor-{DIGEST[:16]}"},
        {"anchor_bytes": 5},
    ],
    ids=str,
)
def test_a_field_out_of_bounds_is_named(change):
    content = json.loads(patch(7).to_json()) | change
    with pytest.raises(ValueError, match=r"its field '[a-z_]+' is out of bounds or contradicts the others"):
        Manifest.from_json(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "torn or not JSON"),
        (patch(7).to_json()[:-40], "torn or not JSON"),
        (b"\xff\xfe{}", "torn or not JSON"),
        (b"[" * 9000, "torn or not JSON"),
        (b"[]", "not a manifest of format 1"),
        (b"{}", "not a manifest of format 1"),
        (patch(7).to_json().replace(b'"format": 1', b'"format": 2'), "not a manifest of format 1"),
        (patch(7).to_json().replace(b'"total"', b'"totals"'), r"keys differ .*\['total', 'totals'\]"),
        (patch(7).to_json().replace(b'"total": 1000', b'"total": 1000, "total": 1000'), "same key twice"),
        (patch(7).to_json().replace(b'"total": 1000', b'"total": NaN'), "NaN, which is not JSON"),
        (patch(7).to_json() + b" " * 20_000, "at most 16384"),
    ],
)
def test_what_is_not_a_manifest_is_refused(data, reason):
    with pytest.raises(ValueError, match=reason):
        Manifest.from_json(data)


def test_every_torn_manifest_is_refused_by_name():
    store = MemoryStore()
    whole = patch(7).to_json()
    for length in range(len(whole) - 1):
        store.put(manifest_name(7), whole[:length])
        with pytest.raises(SyncError, match=r"manifest versions/0000000007.json is refused: it is"):
            read_manifest(store, 7)
    store.put(manifest_name(8), whole)
    with pytest.raises(SyncError, match=r"versions/0000000008.json is refused: it is of version 7"):
        read_manifest(store, 8)
    with pytest.raises(MissingError):
        read_manifest(store, 9)


def reader(*manifests):
    by_version = {manifest.version: manifest for manifest in manifests}

    def read(version):
        if version not in by_version:
            raise MissingError(f"{version} is missing")
        return by_version[version]

    return read


CHAIN = [anchor(0), *(patch(version) for version in range(1, 10)), patch(10, beside=900), patch(11), patch(12)]


@pytest.mark.parametrize(
    ("target", "held", "start", "patches"),
    [
        (0, None, 0, []),
        (3, None, 0, [1, 2, 3]),
        (12, None, 10, [11, 12]),
        (10, None, 10, []),
        (12, (11, digest_of(11)), None, [12]),
        (12, (12, digest_of(12)), None, []),
        (12, (5, digest_of(5)), None, [6, 7, 8, 9, 10, 11, 12]),  # 70 bytes, less than the anchor's 900
        (4, (7, digest_of(7)), 0, [1, 2, 3, 4]),  # backwards
        (12, (11, digest_of(1)), 10, [11, 12]),  # another state under that number
        (12, (12, digest_of(1)), 10, [11, 12]),
        (3, (2, digest_of(9)), 0, [1, 2, 3]),
    ],
)
def test_the_route(target, held, start, patches):
    route = plan_route(reader(*CHAIN), target, held)
    assert (None if route.anchor is None else route.anchor.version) == start
    assert [manifest.version for manifest in route.patches] == patches


def test_the_anchor_wins_when_the_patches_weigh_more():
    chain = [anchor(0), *(patch(version, 100) for version in range(1, 10)), patch(10, 100, beside=350), patch(11, 100)]
    assert plan_route(reader(*chain), 11, (2, digest_of(2))) == Route(chain[10], (chain[11],))
    assert plan_route(reader(*chain), 11, (8, digest_of(8))) == Route(None, tuple(chain[9:12]))


def test_links_that_do_not_fit_are_refused():
    with pytest.raises(SyncError, match="no anchor leads to it"):
        plan_route(reader(patch(3), patch(2)), 3)
    with pytest.raises(SyncError, match="2 is no patch of 1 as committed"):
        plan_route(reader(anchor(0), patch(1, digest=DIGEST), patch(2), patch(3)), 3)
    with pytest.raises(SyncError, match="2 is no patch of 1 as committed"):
        plan_route(reader(anchor(0), patch(1, run_id="other"), patch(2), patch(3)), 3)


def stored(manifests):
    store = MemoryStore()
    for manifest in manifests:
        store.put(manifest.frame, b"")
        if manifest.anchor_frame:
            store.put(manifest.anchor_frame, b"")
        store.put(manifest_name(manifest.version), manifest.to_json())
    store.put("rollouts/0000000001", b"")
    return store


@pytest.mark.parametrize(("before", "first"), [(0, 0), (9, 0), (10, 10), (12, 10), (99, 10)])
def test_retiring_keeps_every_chain_from_the_anchor_on(before, first):
    store = stored(CHAIN)
    assert retire(store, before) == list(range(first))
    assert committed_versions(store) == list(range(first, 13))
    for version in range(max(first, min(before, 12)), 13):
        route = plan_route(lambda number: read_manifest(store, number), version)
        for manifest in route.patches:
            store.get(manifest.frame)
    assert store.names("rollouts/") == ["rollouts/0000000001"]
    assert len(store.names("frames/")) == 14 - first


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("deletions", range(20))
def test_a_retirement_killed_at_any_point_leaves_only_whole_chains(deletions):
    store = stored(CHAIN)
    left = [deletions]
    delete = store.delete

    def stop_later(name):
        if left[0] == 0:
            raise StoppedError
        left[0] -= 1
        delete(name)

    store.delete = stop_later
    with pytest.raises(StoppedError):
        retire(store, 12)
    frames = set(store.names("frames/"))
    for version in committed_versions(store):
        route = plan_route(lambda number: read_manifest(store, number), version)
        assert frames >= {manifest.frame for manifest in route.patches}
    store.delete = delete
    retire(store, 12)
    assert committed_versions(store) == [10, 11, 12]
    assert len(store.names("frames/")) == 4


def test_the_dataclass_is_the_schema():
    names = {field.name for field in dataclasses.fields(Manifest)}
    assert json.loads(anchor(0).to_json()).keys() == names | {"format"}
