"""A rollout worker's side: hold a verified version and move on to a later one (PULSESync, Algorithm 1, decode).

A subscriber that holds the base of a patch applies it in place, which costs the changed elements and one pass of the
digest over all of them; one that comes late starts at the nearest anchor. Whatever it read, a version counts only when
the digest of every tensor's name, shape, dtype and bytes equals the trainer's. When it does not, the patches are taken
back, so that the reader is never wrong, at worst behind.

The pass over all weights can be taken less often than at every version: in between, the running digest binds each
patch to the version before, at the price of the changed elements. It misses only what was written into the held weights
behind the subscriber's back, and the next full pass finds that.
"""

from collections.abc import Sequence

import torch

from thinwire.patch import FrameError, State, apply, decode, decode_anchor, state_digest
from thinwire.patch.bits import Bits, bits_of
from thinwire.patch.compare import Positions
from thinwire.patch.frame import inspect
from thinwire.patch.running import RunningDigest
from thinwire.sync.chain import Manifest, committed_versions, frame_checksum, plan_route, read_manifest
from thinwire.sync.store import Store, SyncError

_Write = tuple[torch.Tensor, Positions, Bits]


class Subscriber:
    """Follows the versions of a store and keeps one copy of the weights.

    ``store`` is where objects are read; between two pulls another way to the same objects (a mirror) may be set.
    """

    def __init__(self, store: Store, *, check_every: int = 1) -> None:
        """Read from ``store``; nothing is held until the first ``pull``.

        ``check_every``: versions between two checks of the state digest of all weights; anchors are always checked.
        Raises ValueError for less than 1.
        """
        if check_every < 1:
            raise ValueError(f"check_every is {check_every} where 1 or more is needed")
        self.store = store
        self._check_every = check_every
        self._checked = 0
        self._running: RunningDigest | None = None
        self._state: State | None = None
        self._held: Manifest | None = None

    @property
    def version(self) -> int | None:
        """The verified version that is held, None before the first."""
        return None if self._held is None else self._held.version

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the version that is held."""
        return self._held

    def latest(self) -> int | None:
        """Return the newest committed version of the store, None when it is empty."""
        versions = committed_versions(self.store)
        return versions[-1] if versions else None

    def pull(self, version: int | None = None) -> State:
        """Return the weights of ``version`` (None: the newest committed one), name -> CPU tensor, verified.

        The state stays the subscriber's: read it, don't write it, and copy it if it must outlast the next ``pull``,
        which may change it in place. Raises SyncError, naming the object or version, when it can't be had or is not
        what the trainer committed; the version held before is then held unchanged, unless its user wrote into it.
        """
        if version is None:
            version = self.latest()
            if version is None:
                raise SyncError("the store holds no committed version")
        held = None if self._held is None else (self._held.version, self._held.digest)
        route = plan_route(lambda number: read_manifest(self.store, number), version, held)
        if route.anchor is not None:
            state, running = self._load_anchor(route.anchor)
            if route.patches:
                running = self._follow(state, route.patches, running, check=True)
            else:
                _verify(state, route.anchor)
            self._state, self._running = state, running
            self._held = route.patches[-1] if route.patches else route.anchor
            self._checked = self._held.version
        elif route.patches:
            self._move_on(route.patches)
        assert self._state is not None
        return self._state

    def check(self) -> None:
        """Compare the state digest of the weights held with the trainer's; raises SyncError when they differ.

        The next ``pull`` then starts at an anchor.
        """
        if self._state is None or self._held is None:
            raise SyncError("no version is held that could be checked")
        try:
            _verify(self._state, self._held)
        except SyncError:
            self._state = self._held = self._running = None
            raise
        self._checked = self._held.version

    def _move_on(self, patches: Sequence[Manifest]) -> None:
        assert self._state is not None
        assert self._held is not None
        check = self._running is None or patches[-1].version - self._checked >= self._check_every
        try:
            self._running = self._follow(self._state, patches, self._running, check=check)
        except SyncError:
            if state_digest(self._state) != self._held.digest:  # its user wrote into it: the next pull takes an anchor
                self._state = self._held = self._running = None
            raise
        self._held = patches[-1]
        self._checked = self._held.version if check else self._checked

    def _frame(self, version: int, name: str, size: int, checksum: str) -> bytes:
        frame = self.store.get(name, at_most=size)
        if len(frame) != size or frame_checksum(frame) != checksum:  # that its bytes match is decode's to check
            raise SyncError(f"version {version} is refused: frame {name} is torn or not the one that was committed")
        return frame

    def _load_anchor(self, manifest: Manifest) -> tuple[State, RunningDigest | None]:
        """Return the weights of a version's anchor and the running digest that it names.

        The checksum is compared; the state digest is the caller's to verify.
        """
        name, size, checksum = manifest.frame, manifest.frame_bytes, manifest.frame_checksum
        if manifest.anchor_frame and manifest.anchor_bytes is not None and manifest.anchor_checksum:
            name, size, checksum = manifest.anchor_frame, manifest.anchor_bytes, manifest.anchor_checksum
        try:
            frame = self._frame(manifest.version, name, size, checksum)
            return decode_anchor(frame, verify=False), _named(inspect(frame).digests.target_running)
        except FrameError as error:
            raise SyncError(f"version {manifest.version} is refused: frame {name}: {error}") from None

    def _follow(
        self, state: State, patches: Sequence[Manifest], running: RunningDigest | None, *, check: bool
    ) -> RunningDigest | None:
        """Apply ``patches`` to ``state`` in place and return the running digest of the last version.

        With ``check``, or where a frame names no running digest, the state digest of the last version is verified. When
        anything is amiss all is taken back.
        """
        before = dict(state)
        writes: list[_Write] = []
        try:
            for manifest in patches:
                running = self._apply(state, manifest, running, writes)
            if check or running is None:
                _verify(state, patches[-1])
        except BaseException:
            _take_back(state, before, writes)
            raise
        return running

    def _apply(
        self, state: State, manifest: Manifest, running: RunningDigest | None, writes: list[_Write]
    ) -> RunningDigest | None:
        frame = self._frame(manifest.version, manifest.frame, manifest.frame_bytes, manifest.frame_checksum)
        held = manifest.base_digest
        try:
            patch = decode(frame, state, base_digest=held, base_running=running)
            if patch.target_digest != manifest.digest:
                raise FrameError(f"it leads to state digest {patch.target_digest[:16]}, not {manifest.digest[:16]}")
            for part in patch.tensors:
                if part.name in state:
                    writes.append((state[part.name], part.positions, bits_of(state[part.name])[part.positions]))
            apply(state, patch, in_place=True, base_digest=held, base_running=running)
        except FrameError as error:
            raise SyncError(f"version {manifest.version} is refused: frame {manifest.frame}: {error}") from None
        return _named(patch.target_running)


def _named(text: str) -> RunningDigest | None:
    return RunningDigest.parse(text) if text else None


def _verify(state: State, manifest: Manifest) -> None:
    digest = state_digest(state)
    if digest != manifest.digest:
        raise SyncError(
            f"version {manifest.version} is refused: the weights have state digest {digest[:16]}, the trainer's had "
            f"{manifest.digest[:16]}"
        )


def _take_back(state: State, before: State, writes: Sequence[_Write]) -> None:
    for tensor, positions, bits in reversed(writes):
        bits_of(tensor)[positions] = bits
    state.clear()
    state.update(before)
