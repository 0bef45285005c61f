"""What only a directory can get wrong: leftovers of a killed writer, and what other processes see."""

import os
import time

import pytest

from thinwire.sync import DirectoryStore
from thinwire.sync.chain import committed_versions


def test_two_stores_of_one_directory_see_each_other(tmp_path):
    DirectoryStore(tmp_path).put("frames/a", b"1")
    assert DirectoryStore(tmp_path).get("frames/a") == b"1"


def test_a_killed_writer_leaves_nothing_that_a_reader_sees(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("frames/a", b"1")
    part = tmp_path / "frames" / ".b.0123456789abcdef.part"
    part.write_bytes(b"half a fra")
    assert store.names() == ["frames/a"]
    assert part.exists()
    DirectoryStore(tmp_path)
    assert part.exists()  # perhaps still being written
    hours_ago = time.time() - 2 * 3600
    os.utime(part, (hours_ago, hours_ago))
    DirectoryStore(tmp_path)
    assert not part.exists()
    assert store.get("frames/a") == b"1"


def test_a_failed_write_leaves_the_old_object_and_no_part(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("frames/a", b"1")
    with pytest.raises(TypeError):
        store.put("frames/a", "not bytes")
    assert store.get("frames/a") == b"1"
    assert [path.name for path in (tmp_path / "frames").iterdir()] == ["a"]


def test_a_full_medium_is_an_error_and_leaves_no_object(tmp_path):
    import resource
    import signal

    store = DirectoryStore(tmp_path)
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put("frames/a", b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, previous)
    assert store.names() == []
    assert list((tmp_path / "frames").iterdir()) == []


def test_files_of_others_are_neither_seen_nor_swept(tmp_path):
    store = DirectoryStore(tmp_path)
    store.put("versions/0000000000.json", b"1")
    for name in ("a b", "versions/é.json", "versions/" + "\u0660" * 10 + ".json", os.fsdecode(b"versions/\xff")):
        (tmp_path / name).write_bytes(b"")
    assert store.names() == ["versions/0000000000.json"]
    assert committed_versions(store) == [0]
    theirs, folder = tmp_path / ".theirs.part", tmp_path / ".b.0123456789abcdef.part"
    theirs.write_bytes(b"")
    folder.mkdir()
    for path in (theirs, folder):
        os.utime(path, (1, 1))
    DirectoryStore(tmp_path)
    assert theirs.exists()
    assert folder.exists()


def test_a_reader_that_may_not_delete_leftovers_still_opens(tmp_path, monkeypatch):
    DirectoryStore(tmp_path).put("a", b"1")
    part = tmp_path / ".b.0123456789abcdef.part"
    part.write_bytes(b"")
    os.utime(part, (1, 1))

    def unlink(path, missing_ok=False):
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr(type(part), "unlink", unlink)
    assert DirectoryStore(tmp_path).get("a") == b"1"


def test_a_folder_that_can_not_be_listed_is_not_an_empty_one(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path)
    store.put("versions/0000000000.json", b"1")
    assert store.names("frames/") == []

    def scandir(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(PermissionError):
        store.names("versions/")
