"""One suite for every store: what a Publisher and a Subscriber rely on holds wherever the objects live."""

import threading

import pytest

from thinwire.sync import DirectoryStore, MemoryStore, MissingError, ShapedStore, SyncError

STORES = {
    "memory": lambda path: MemoryStore(),
    "directory": DirectoryStore,
    "shaped": lambda path: ShapedStore(MemoryStore(), 1e12),
    "shaped_directory": lambda path: ShapedStore(DirectoryStore(path), 1e12),
}

BAD_NAMES = [
    "",
    "/etc/passwd",
    "../out",
    "a/../b",
    "a//b",
    "a/",
    ".hidden",
    "a/.hidden",
    "a\\b",
    "a b",
    "a\nb",
    "é",
    "a" * 101,
]


@pytest.fixture(params=STORES)
def store(request, tmp_path):
    return STORES[request.param](tmp_path / "store")


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 1000])
def test_what_was_put_is_got(store, data):
    store.put("frames/0.patch", data)
    assert store.get("frames/0.patch") == data


def test_put_replaces(store):
    store.put("a", b"long first")
    store.put("a", b"2")
    assert store.get("a") == b"2"
    assert store.names() == ["a"]


def test_create_gives_a_name_once(store):
    store.create("a/b", b"first")
    with pytest.raises(SyncError, match="a/b is already in the store"):
        store.create("a/b", b"second")
    assert store.get("a/b") == b"first"
    store.delete("a/b")
    store.create("a/b", b"third")
    assert store.get("a/b") == b"third"


def test_one_of_many_creators_wins(store):
    won = []
    start = threading.Barrier(8)

    def compete(rank):
        start.wait()
        try:
            store.create("commit", bytes([rank]) * 5000)
        except SyncError:
            return
        won.append(rank)

    threads = [threading.Thread(target=compete, args=(rank,)) for rank in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("commit") == bytes(won) * 5000


def test_a_reader_sees_whole_objects_only(store):
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    store.put("x", contents[0])
    enough = threading.Event()
    written = []

    def rewrite():
        while not enough.is_set():
            store.put("x", contents[len(written) % 2])
            written.append(True)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        while len(written) < 30:
            assert store.get("x") in contents
    finally:
        enough.set()
        writer.join()


def test_names_are_sorted_and_filtered_by_prefix(store):
    for name in ("b/2", "a", "b/10", "bb", "b/c/d"):
        store.put(name, b"")
    assert store.names() == ["a", "b/10", "b/2", "b/c/d", "bb"]
    assert store.names("b/") == ["b/10", "b/2", "b/c/d"]
    assert store.names("b") == ["b/10", "b/2", "b/c/d", "bb"]
    assert store.names("b/c/") == ["b/c/d"]
    assert store.names("c/") == []
    assert store.names("b/../../") == []


@pytest.mark.parametrize("name", ["missing", "a/missing", "a"])
def test_a_missing_object_is_named(store, name):
    store.put("a/b", b"1")
    with pytest.raises(MissingError, match=f"{name} is not in the store"):
        store.get(name)
    with pytest.raises(MissingError, match=f"{name} is not in the store"):
        store.delete(name)


def test_an_object_over_the_limit_is_refused(store):
    store.put("a", b"12345")
    assert store.get("a", at_most=5) == b"12345"
    with pytest.raises(SyncError, match="a has 5 bytes where at most 4 are allowed"):
        store.get("a", at_most=4)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_leads_elsewhere_is_refused(store, name, tmp_path):
    (tmp_path / "out").write_bytes(b"secret")
    for call in (
        lambda: store.put(name, b""),
        lambda: store.create(name, b""),
        lambda: store.get(name),
        lambda: store.delete(name),
    ):
        with pytest.raises(SyncError, match=r"object name .* is refused"):
            call()
    assert (tmp_path / "out").read_bytes() == b"secret"
