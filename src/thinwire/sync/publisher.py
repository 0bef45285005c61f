"""The trainer's side: turn each version of the weights into frames and commit it (PULSESync, Algorithm 1, encode).

The order is everything. Frames first, then the manifest, which commits; only then does the publisher advance its own
base. Killed or refused at any point before the commit, it has sent nothing, and the next patch spans both steps; a base
that advances at the write instead loses an update for ever, which is the commonest silent fault of such systems. What a
restart can't know it doesn't guess: the first version of a new publisher is an anchor, under the next free number.
"""

import torch

from thinwire.patch import State, apply, diff, encode, encode_anchor
from thinwire.patch.bits import copy_of, same_memory
from thinwire.patch.digest import DigestTree, digest_tree
from thinwire.patch.running import RunningDigest, running_digest
from thinwire.sync.chain import (
    MAX_VERSION,
    Manifest,
    committed_versions,
    frame_checksum,
    frame_name,
    is_label,
    manifest_name,
    read_manifest,
    retire,
)
from thinwire.sync.store import Store, SyncError


class Publisher:
    """Publishes versions of one run into a store.

    Keeps one copy of the weights as the next patch's base (none when every version is an anchor).
    """

    def __init__(
        self, store: Store, *, run_id: str, anchor_every: int, encoding: str = "auto", compress_anchors: bool = True
    ) -> None:
        """Open ``store`` for the run ``run_id``, whose version numbers go on where the store ends.

        An anchor is written every ``anchor_every`` versions (1: full synchronisation, no patches), and whenever a
        patch would be no smaller; ``encoding`` is that of ``thinwire.patch.encode``. Raises SyncError when the store
        holds another run, and ValueError for an ``anchor_every`` below 1 or a ``run_id`` that is no label.
        """
        if anchor_every < 1:
            raise ValueError(f"anchor_every is {anchor_every} where 1 or more is needed")
        if not is_label(run_id):
            raise ValueError(f"run_id is {run_id!r} where 1 to 100 of A-Z a-z 0-9 . _ + : - are needed")
        self._store = store
        self._run_id = run_id
        self._anchor_every = anchor_every
        self._encoding = encoding
        self._compress = compress_anchors
        self._base: State | None = None
        self._base_tree: DigestTree | None = None
        self._base_running: RunningDigest | None = None
        self._last: Manifest | None = None
        self._anchor_version = 0
        self._anchor_bytes = 0
        self._next = 0
        versions = committed_versions(store)
        if versions:
            last = read_manifest(store, versions[-1])
            if last.run_id != run_id:
                raise SyncError(
                    f"the store holds versions of run {last.run_id!r}, not of {run_id!r}: use another store"
                )
            self._next = last.version + 1

    @property
    def next_version(self) -> int:
        """The number of the version that the next ``publish`` commits."""
        return self._next

    def publish(self, state: State) -> Manifest:
        """Commit ``state`` (name -> CPU tensor) as the next version and return its manifest.

        ``state`` is read and not kept. After any exception the version is not committed, and the next call publishes
        all that changed since the last committed one. Raises SyncError when another publisher took the version's
        number.
        """
        version = self._next
        if version > MAX_VERSION:
            raise SyncError(f"version {version} is beyond the last number, {MAX_VERSION}")
        newest = max(committed_versions(self._store), default=-1)
        if newest > version:  # a number that was retired is free again, but no reader would look there
            raise SyncError(f"version {version} is refused: another publisher went on to version {newest}")
        tree = digest_tree(state)
        if self._base is None or self._last is None:
            return self._publish_anchor(version, state, tree, running_digest(state))
        patch = diff(self._base, state, base_tree=self._base_tree, target_tree=tree, base_running=self._base_running)
        running = RunningDigest.parse(patch.target_running)
        frame = encode(patch, self._base, self._encoding)
        if len(frame) >= self._anchor_bytes:
            return self._publish_anchor(version, state, tree, running)
        name, size, checksum = self._put_frame(version, "patch", frame)
        anchor: tuple[str | None, int | None, str | None] = (None, None, None)
        if version - self._anchor_version >= self._anchor_every:
            beside = encode_anchor(state, compress=self._compress, tree=tree, running=running)
            anchor = self._put_frame(version, "anchor", beside)
        manifest = Manifest(
            run_id=self._run_id,
            version=version,
            kind="patch",
            base_version=self._last.version,
            frame=name,
            frame_bytes=size,
            frame_checksum=checksum,
            full_bytes=_full_bytes(state),
            changed=patch.changed,
            total=_elements(state),
            digest=tree.root,
            base_digest=self._last.digest,
            encoding=self._encoding,
            anchor_frame=anchor[0],
            anchor_bytes=anchor[1],
            anchor_checksum=anchor[2],
        )
        self._commit(manifest)
        base, self._base = self._base, None  # interrupted between these lines, the next version is an anchor
        self._base = apply(base, patch, in_place=True, base_digest=patch.base_digest)
        self._base_tree, self._base_running = tree, running
        return manifest

    def retire(self, before: int) -> list[int]:
        """Delete the versions that no chain to version ``before`` or later needs; return their numbers.

        The caller knows that no reader is still on its way to an earlier version; one that is gets a named refusal.
        """
        return retire(self._store, before)

    def _publish_anchor(self, version: int, state: State, tree: DigestTree, running: RunningDigest) -> Manifest:
        frame = encode_anchor(state, compress=self._compress, tree=tree, running=running)
        name, size, checksum = self._put_frame(version, "anchor", frame)
        total = _elements(state)
        manifest = Manifest(
            run_id=self._run_id,
            version=version,
            kind="anchor",
            base_version=None,
            frame=name,
            frame_bytes=size,
            frame_checksum=checksum,
            full_bytes=_full_bytes(state),
            changed=total,
            total=total,
            digest=tree.root,
            base_digest=None,
            encoding="anchor",
        )
        self._commit(manifest)
        self._base = None
        if self._anchor_every > 1:
            self._base, self._base_tree, self._base_running = _copy(state), tree, running
        return manifest

    def _put_frame(self, version: int, kind: str, frame: bytes) -> tuple[str, int, str]:
        checksum = frame_checksum(frame)
        name = frame_name(version, kind, checksum)
        self._store.put(name, frame)
        return name, len(frame), checksum

    def _commit(self, manifest: Manifest) -> None:
        name, data = manifest_name(manifest.version), manifest.to_json()
        try:
            self._store.create(name, data)
        except (SyncError, OSError):
            # A medium may fail after it wrote. The version counts exactly when readers see it.
            if not self._holds(name, data):
                raise
        if manifest.kind == "anchor":
            self._anchor_version, self._anchor_bytes = manifest.version, manifest.frame_bytes
        elif manifest.anchor_bytes is not None:
            self._anchor_version, self._anchor_bytes = manifest.version, manifest.anchor_bytes
        self._last = manifest
        self._next = manifest.version + 1

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return self._store.get(name, at_most=len(data)) == data
        except (SyncError, OSError):
            return False


def _distinct(state: State) -> dict[object, torch.Tensor]:
    return {same_memory(tensor) or name: tensor for name, tensor in state.items()}


def _elements(state: State) -> int:
    """Return the elements of all tensors, tied ones counted once."""
    return sum(tensor.numel() for tensor in _distinct(state).values())


def _full_bytes(state: State) -> int:
    """Return the bytes of all tensors, tied ones counted once."""
    return sum(tensor.nbytes for tensor in _distinct(state).values())


def _copy(state: State) -> State:
    """Return a contiguous copy in which tied tensors are tied."""
    copies = {key: copy_of(tensor) for key, tensor in _distinct(state).items()}
    return {name: copies[same_memory(tensor) or name] for name, tensor in state.items()}
