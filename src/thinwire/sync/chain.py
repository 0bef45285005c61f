"""Versions and the chains that lead to them.

A version is committed by its manifest, one small JSON object written last: before it, no reader knows of the frames;
after it, they are all there. Every manifest names the frame that leads to its version, either an anchor (the full
weights) or a patch from the version before; a patch version may carry an anchor beside it, so that a worker that
follows closely reads patches alone and one that comes late has a short chain.

``plan_route`` picks the way to a version by counting bytes: onward from the version that a reader holds, or from the
nearest anchor. It is a function of manifests alone; the objects are read by ``subscriber``.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from thinwire.sync.store import MissingError, Store, SyncError, check_name

FORMAT = 1
MAX_MANIFEST_BYTES = 1 << 14
MAX_VERSION = 10**10 - 1
MAX_CHAIN = 100_000
_MAX_COUNT = 1 << 53  # exact in JSON readers that hold numbers as doubles
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MANIFEST = re.compile(r"versions/([0-9]{10})\.json")
_FRAME = re.compile(r"frames/([0-9]{10})-(?:anchor|patch)-[0-9a-f]{16}")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+:-]{0,99}")


@dataclass(frozen=True)
class Manifest:
    """All that a reader must know of a version before it reads a frame.

    ``version`` and ``base_version`` (a patch's base, None for an anchor) count from 0. ``frame`` is the object's
    name, ``frame_bytes`` its size and ``frame_checksum`` the BLAKE3 that it ends with. ``full_bytes`` is the size of
    all tensors without any coding, ``changed`` and ``total`` count elements of the version (an anchor counts all as
    changed). ``digest`` and ``base_digest`` are state digests. The ``anchor_*`` fields tell of the anchor that stands
    beside a patch, and are empty where there is none.
    """

    run_id: str
    version: int
    kind: str
    base_version: int | None
    frame: str
    frame_bytes: int
    frame_checksum: str
    full_bytes: int
    changed: int
    total: int
    digest: str
    base_digest: str | None
    encoding: str
    anchor_frame: str | None = None
    anchor_bytes: int | None = None
    anchor_checksum: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError naming the first field that is out of bounds or contradicts another."""
        for name, largest in (
            ("version", MAX_VERSION),
            ("frame_bytes", _MAX_COUNT),
            ("full_bytes", _MAX_COUNT),
            ("total", _MAX_COUNT),
            ("changed", self.total),
        ):
            _need(name, 0 <= getattr(self, name) <= largest)
        _need("run_id", is_label(self.run_id))
        _need("encoding", is_label(self.encoding))
        _need("digest", _is_digest(self.digest))
        _need("frame_checksum", _is_digest(self.frame_checksum))
        _need("frame", _frame_version(self.frame) == self.version)
        beside = (self.anchor_frame, self.anchor_bytes, self.anchor_checksum)
        if self.kind == "anchor":
            _need("base_version", self.base_version is None)
            _need("base_digest", self.base_digest is None)
            _need("anchor_frame", beside == (None, None, None))
        elif self.kind == "patch":
            _need("base_version", self.base_version is not None and 0 <= self.base_version < self.version)
            _need("base_digest", _is_digest(self.base_digest))
            if beside != (None, None, None):
                _need("anchor_frame", _frame_version(self.anchor_frame or "") == self.version)
                _need("anchor_bytes", self.anchor_bytes is not None and 0 <= self.anchor_bytes <= _MAX_COUNT)
                _need("anchor_checksum", _is_digest(self.anchor_checksum))
        else:
            _need("kind", False)

    def to_json(self) -> bytes:
        """Return the manifest as one line of JSON in UTF-8, keys sorted."""
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """Read a manifest: exactly the known keys, of the right types and inside their bounds.

        Raises ValueError that says what is wrong.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"it has {len(data)} bytes where a manifest has at most {MAX_MANIFEST_BYTES}")
        try:
            content = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
            raise ValueError("it is torn or not JSON") from None
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"it is not a manifest of format {FORMAT}")
        if content.keys() != _TYPES.keys():
            raise ValueError(f"its keys differ from a manifest's in {sorted(content.keys() ^ _TYPES.keys())}")
        for name, types in _TYPES.items():
            _need(name, type(content[name]) in types)
        return cls(**content)


_TYPES: dict[str, tuple[type, ...]] = {
    name: get_args(hint) or (hint,) for name, hint in get_type_hints(Manifest).items()
}


def _need(field: str, holds: bool) -> None:
    if not holds:
        raise ValueError(f"its field {field!r} is out of bounds or contradicts the others")


def is_label(text: str) -> bool:
    """Whether ``text`` can be a run id: 1 to 100 of ``A-Z a-z 0-9 . _ + : -``, a letter or digit first."""
    return bool(_LABEL.fullmatch(text))


def _is_digest(text: str | None) -> bool:
    return text is not None and bool(_DIGEST.fullmatch(text))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("it has the same key twice")
    return content


def _no_constant(text: str) -> None:
    raise ValueError(f"it holds {text}, which is not JSON")


def _frame_version(name: str) -> int | None:
    found = _FRAME.fullmatch(name)
    return int(found[1]) if found else None


def manifest_name(version: int) -> str:
    """Return the name of the object that commits ``version``."""
    return f"versions/{version:010d}.json"


def frame_name(version: int, kind: str, checksum: str) -> str:
    """Return the name of a frame of ``kind`` "anchor" or "patch".

    It holds the frame's own checksum, so that a second writer of the same version can't replace a committed frame.
    """
    return f"frames/{version:010d}-{kind}-{checksum[:16]}"


def frame_checksum(frame: bytes) -> str:
    """Return the BLAKE3 that a frame ends with, as 64 hexadecimal digits; whether it is right, decoding tells."""
    return frame[-32:].hex()


def committed_versions(store: Store) -> list[int]:
    """Return all committed versions of ``store``, ascending."""
    found = (_MANIFEST.fullmatch(name) for name in store.names("versions/"))
    return sorted(int(match[1]) for match in found if match)


def read_manifest(store: Store, version: int) -> Manifest:
    """Read the manifest of ``version``.

    Raises MissingError when the version is not committed, SyncError naming the manifest when it is torn or wrong.
    """
    name = manifest_name(version)
    data = store.get(check_name(name), at_most=MAX_MANIFEST_BYTES)
    try:
        manifest = Manifest.from_json(data)
    except ValueError as error:
        raise SyncError(f"manifest {name} is refused: {error}") from None
    if manifest.version != version:
        raise SyncError(f"manifest {name} is refused: it is of version {manifest.version}")
    return manifest


@dataclass(frozen=True)
class Route:
    """The way to a version: an anchor to start from (None: from the version that the reader holds), then patches."""

    anchor: Manifest | None
    patches: tuple[Manifest, ...]


def plan_route(read: Callable[[int], Manifest], version: int, held: tuple[int, str] | None = None) -> Route:
    """Return the route to ``version`` that moves the fewest bytes.

    ``read`` gives the manifest of a version; ``held`` is the version that the reader holds and its state digest. Raises
    SyncError when links of the chain don't fit each other or the chain never meets an anchor.
    """
    link = read(version)
    if held == (link.version, link.digest):
        return Route(None, ())
    onward: list[Manifest] = []
    best: Route | None = None
    best_bytes = patch_bytes = 0
    while True:
        anchor_bytes = link.frame_bytes if link.kind == "anchor" else link.anchor_bytes
        if best is None and anchor_bytes is not None:
            best, best_bytes = Route(link, tuple(reversed(onward))), anchor_bytes + patch_bytes
        if link.base_version is None:
            break
        if len(onward) == MAX_CHAIN:
            raise SyncError(f"version {version} is refused: its chain has more than {MAX_CHAIN} links")
        onward.append(link)
        patch_bytes += link.frame_bytes
        if held == (link.base_version, link.base_digest) and (best is None or patch_bytes <= best_bytes):
            return Route(None, tuple(reversed(onward)))
        # Beyond the nearest anchor only the way from the held version can be shorter.
        if best is not None and (held is None or link.base_version <= held[0] or patch_bytes > best_bytes):
            break
        try:
            base = read(link.base_version)
        except MissingError:  # retired: what came before the last anchor need not be there
            break
        if (base.digest, base.run_id) != (link.base_digest, link.run_id):
            raise SyncError(f"version {version} is refused: {link.version} is no patch of {base.version} as committed")
        link = base
    if best is None:
        raise SyncError(f"version {version} is refused: no anchor leads to it")
    return best


def retire(store: Store, before: int) -> list[int]:
    """Delete what only versions below ``before`` need, and return the versions that went.

    The newest version at or below ``before`` that has an anchor stays, and everything after it. Manifests go first, the
    newest of them first, so that a killed call leaves no version without its frames or its base.
    """
    versions = committed_versions(store)
    for first in reversed([version for version in versions if version <= before]):
        manifest = read_manifest(store, first)
        if manifest.kind == "anchor" or manifest.anchor_frame is not None:
            break
    else:
        return []
    gone = [version for version in versions if version < first]
    for version in reversed(gone):
        store.delete(manifest_name(version))
    for name in store.names("frames/"):
        owner = _frame_version(name)
        if owner is not None and owner < first:
            store.delete(name)
    return gone
