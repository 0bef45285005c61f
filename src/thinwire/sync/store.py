"""Where frames and manifests live: a flat space of named objects that are written whole or not at all.

A store is the whole interface between a trainer and its rollout workers, so it promises little and keeps it: an
object appears complete under its name or does not appear; ``create`` gives a name to one writer only, which is how a
version is committed; a name can't lead out of the store. Everything else (order, chains, checks) is built on top, and
one contract suite runs on every implementation. ``ShapedStore`` puts a slow link in front of another store by real
waiting, for measurements of seconds and not of arithmetic.
"""

import os
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

MAX_OBJECT_BYTES = 1 << 40
"""No object of a store is read beyond this size (1 TiB) unless the caller states a tighter limit."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(/[A-Za-z0-9][A-Za-z0-9._-]{0,99}){0,7}")
_PART = re.compile(r"\..+\.[0-9a-f]{16}\.part")
_CHUNK_BYTES = 1 << 16
_ABANDONED_SECONDS = 3600.0


class SyncError(RuntimeError):
    """A named refusal: the message says which object or version was refused, and why."""


class MissingError(SyncError):
    """The store holds no object of this name."""


def check_name(name: str) -> str:
    """Return ``name`` if it is a valid object name, else raise SyncError.

    A name is 1 to 8 parts joined by ``/``; a part has 1 to 100 of ``A-Z a-z 0-9 . _ -`` and begins with a letter or
    digit, so that neither ``..`` nor a hidden file nor an absolute path can be named.
    """
    if not _NAME.fullmatch(name):
        raise SyncError(f"object name {name!r} is refused: parts of A-Z a-z 0-9 . _ - joined by / are allowed")
    return name


class Store(ABC):
    """Named objects of bytes. Every method raises SyncError for an invalid name; the medium's OSError passes."""

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write ``data`` under ``name``, atomically, in place of what was there; durable when the call returns."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Write as ``put`` does, but only if ``name`` is free, else raise SyncError: one of several writers wins."""

    @abstractmethod
    def get(self, name: str, *, at_most: int = MAX_OBJECT_BYTES) -> bytes:
        """Return the bytes of ``name``; MissingError without it, SyncError when it is larger than ``at_most`` bytes."""

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all complete objects that begin with ``prefix``, sorted."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove the object; MissingError when there is none."""


def _check_size(name: str, size: int, at_most: int) -> None:
    if size > at_most:
        raise SyncError(f"{name} has {size} bytes where at most {at_most} are allowed")


class MemoryStore(Store):
    """Objects in the memory of this process; safe for several threads."""

    def __init__(self) -> None:
        """Begin empty."""
        self._objects: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def put(self, name: str, data: bytes) -> None:
        """See Store."""
        with self._lock:
            self._objects[check_name(name)] = bytes(data)

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        with self._lock:
            if check_name(name) in self._objects:
                raise SyncError(f"{name} is already in the store")
            self._objects[name] = bytes(data)

    def get(self, name: str, *, at_most: int = MAX_OBJECT_BYTES) -> bytes:
        """See Store."""
        with self._lock:
            data = self._objects.get(check_name(name))
        if data is None:
            raise MissingError(f"{name} is not in the store")
        _check_size(name, len(data), at_most)
        return data

    def names(self, prefix: str = "") -> list[str]:
        """See Store."""
        with self._lock:
            return sorted(name for name in self._objects if name.startswith(prefix))

    def delete(self, name: str) -> None:
        """See Store."""
        with self._lock:
            if self._objects.pop(check_name(name), None) is None:
                raise MissingError(f"{name} is not in the store")


class DirectoryStore(Store):
    """Objects as files under one directory, which several processes may share.

    A file is written under a hidden temporary name, flushed to the disk, then renamed (``put``) or hard-linked
    (``create``), and the directory is flushed too. A writer killed at any point leaves at most a hidden file, which
    no reader sees and the next store opened here removes once it was untouched for an hour. Files of others whose name
    is no object's are not seen.
    """

    def __init__(self, path: str | Path) -> None:
        """Open the directory ``path``, made if it is missing."""
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self._sweep()

    def _sweep(self) -> None:
        oldest = time.time() - _ABANDONED_SECONDS
        for part in self.path.rglob(".*.part"):
            try:
                if _PART.fullmatch(part.name) and part.is_file() and part.stat().st_mtime < oldest:
                    part.unlink()
            except OSError:  # its writer finished meanwhile, or this is a reader that may not delete
                continue

    def _write(self, name: str, data: bytes, place: Callable[[Path, Path], object]) -> None:
        target = self.path / check_name(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            place(part, target)
        finally:
            part.unlink(missing_ok=True)
        _flush_directory(target.parent)

    def put(self, name: str, data: bytes) -> None:
        """See Store."""
        self._write(name, data, Path.replace)

    def create(self, name: str, data: bytes) -> None:
        """See Store."""
        try:
            self._write(name, data, os.link)
        except FileExistsError:
            raise SyncError(f"{name} is already in the store {self.path}") from None

    def get(self, name: str, *, at_most: int = MAX_OBJECT_BYTES) -> bytes:
        """See Store."""
        try:
            with (self.path / check_name(name)).open("rb") as file:
                _check_size(name, os.fstat(file.fileno()).st_size, at_most)
                return file.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise MissingError(f"{name} is not in the store {self.path}") from None

    def names(self, prefix: str = "") -> list[str]:
        """See Store."""
        above = prefix.rpartition("/")[0]
        folder = self.path / above if _NAME.fullmatch(above) else self.path  # only to walk less
        found = (
            (Path(parent) / file).relative_to(self.path).as_posix()
            for parent, _, files in os.walk(folder, onerror=_raise_unless_absent)
            for file in files
        )
        return sorted(name for name in found if name.startswith(prefix) and _NAME.fullmatch(name))

    def delete(self, name: str) -> None:
        """See Store."""
        try:
            (self.path / check_name(name)).unlink()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise MissingError(f"{name} is not in the store {self.path}") from None


def _raise_unless_absent(error: OSError) -> None:
    """Pass on what hides objects: a folder that can't be listed is not an empty one."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _flush_directory(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class ShapedStore(Store):
    """Another store behind a link of ``bits_per_second``: reads and writes take the time that the link would.

    The payload moves in chunks of 64 KiB, each of which takes its turn on the one link, so two transfers at once
    share it. Names, deletions and refusals cost nothing, and no latency is added. Waiting is real; ``clock``
    (seconds, monotonic) and ``sleep`` (seconds) are arguments so that a test can tell the exact schedule.
    """

    def __init__(
        self,
        store: Store,
        bits_per_second: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Shape ``store``. Raises ValueError unless ``bits_per_second`` is above 0."""
        if not bits_per_second > 0:
            raise ValueError(f"bits_per_second is {bits_per_second} where a rate above 0 is needed")
        self._store = store
        self._rate = bits_per_second
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def _pace(self, size: int, begun: float) -> None:
        due = begun
        for offset in range(0, size, _CHUNK_BYTES):
            # The schedule counts from ``begun``, not from now: a sleep that overshoots is made up by the next chunk.
            with self._lock:
                due = max(due, self._free_at) + 8 * min(_CHUNK_BYTES, size - offset) / self._rate
                self._free_at = due
            wait = due - self._clock()
            if wait > 0:
                self._sleep(wait)

    def put(self, name: str, data: bytes) -> None:
        """See Store; the object appears when its last chunk has crossed the link."""
        begun = self._clock()
        self._pace(len(data), begun)
        self._store.put(check_name(name), data)

    def create(self, name: str, data: bytes) -> None:
        """See Store; the object appears when its last chunk has crossed the link."""
        begun = self._clock()
        self._pace(len(data), begun)
        self._store.create(check_name(name), data)

    def get(self, name: str, *, at_most: int = MAX_OBJECT_BYTES) -> bytes:
        """See Store; reading the medium and crossing the link go on at the same time."""
        begun = self._clock()
        data = self._store.get(name, at_most=at_most)
        self._pace(len(data), begun)
        return data

    def names(self, prefix: str = "") -> list[str]:
        """See Store."""
        return self._store.names(prefix)

    def delete(self, name: str) -> None:
        """See Store."""
        self._store.delete(name)
