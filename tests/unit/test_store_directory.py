"""What only a directory can get wrong: leftovers of a killed writer, and what other processes see."""

import os
import time

import pytest

from thinwire.sync import DirectoryStore


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
