"""The envelope of every frame, and the reader that trusts nothing.

A frame is: 124 fixed bytes, a header, a payload, and 32 bytes of BLAKE3 over all that (docs/FORMAT.md). Every size is
read, bounded and checked against the bytes that are there before it is used, so that a torn, cut, extended or hostile
frame ends in one named FrameError and never in a crash, a hang or an allocation that the frame's own length does not
justify.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zstandard
from blake3 import blake3

from thinwire.patch.patch import FrameError

MAGIC = b"THINWIRE"
VERSION = 2
"""The version that is written; version 1, which has no running digests and no context coding, is still read."""
KINDS = {1: "patch", 2: "anchor"}
ENCODINGS = {
    0: "published",
    1: "absolute",
    2: "relative",
    3: "dense",
    4: "context",
    16: "raw",
    17: "planes",
    18: "coded",
}
MAX_HEADER_BYTES = 1 << 26
MAX_NAME_BYTES = 1 << 12
MAX_DIMENSIONS = 64
_FIXED = struct.Struct("<8sHBBIIQ32s32s")
_RUNNING = struct.Struct("<16s16s")
_CHECK_BYTES = 32


@dataclass(frozen=True)
class Envelope:
    """A frame taken apart: words for kind and encoding, digests as hexadecimal digits, header and payload as bytes."""

    version: int
    kind: str
    encoding: str
    digests: "Digests"
    header: bytes
    payload: Any


@dataclass(frozen=True)
class Digests:
    """What a frame binds: state digests (64 hexadecimal digits) and running digests (32) of base and target.

    "" stands for none: an anchor has no base, and a frame may come without running digests.
    """

    base: str
    target: str
    base_running: str = ""
    target_running: str = ""

    def fields(self) -> list[bytes]:
        """Return the four digests as bytes, zeros for none, in the order of the wire."""
        sizes = ((self.base, 32), (self.target, 32), (self.base_running, 16), (self.target_running, 16))
        return [bytes.fromhex(text) if text else bytes(size) for text, size in sizes]


def seal(kind: str, encoding: str, digests: Digests, header: bytes, payload: list[Any], level: int) -> bytes:
    """Return the frame of ``payload`` (byte strings in order); raises ValueError for a header that is too long."""
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the header takes {len(header)} bytes, a frame carries at most {MAX_HEADER_BYTES}: too many tensors"
        )
    stored = zstandard.ZstdCompressor(level=max(level, 9)).compress(header)
    base, target, *running = digests.fields()
    fixed = _FIXED.pack(
        MAGIC,
        VERSION,
        next(code for code, word in KINDS.items() if word == kind),
        next(code for code, word in ENCODINGS.items() if word == encoding),
        len(stored),
        len(header),
        sum(len(part) for part in payload),
        base,
        target,
    ) + _RUNNING.pack(*running)
    check = blake3(max_threads=blake3.AUTO)
    for part in (fixed, stored, *payload):
        check.update(part)
    return b"".join([fixed, stored, *payload, check.digest()])


def unseal(frame: Any) -> Envelope:
    """Return the parts of ``frame``; raises FrameError for anything that is not one whole, unharmed frame of this
    version.
    """
    view = memoryview(frame).cast("B")
    least = _FIXED.size + _CHECK_BYTES
    if len(view) < least:
        raise FrameError(f"{len(view)} bytes are too few for a frame, which has at least {least}")
    magic, version, kind, encoding, stored, raw, payload, base, target = _FIXED.unpack(view[: _FIXED.size])
    if magic != MAGIC:
        raise FrameError(f"the bytes begin with {bytes(magic)!r}, a frame with {MAGIC!r}")
    if not 1 <= version <= VERSION:
        raise FrameError(f"the frame has format version {version}, this reader knows versions 1 to {VERSION}")
    known = kind in KINDS and encoding in ENCODINGS and (kind == 2) == (encoding >= 16)
    if not known or (version == 1 and ENCODINGS[encoding] in ("context", "coded")):
        raise FrameError(f"the frame names kind {kind} with encoding {encoding}, which this reader does not know")
    start = _FIXED.size + (_RUNNING.size if version > 1 else 0)
    expected = start + stored + payload + _CHECK_BYTES
    if expected != len(view):
        raise FrameError(f"the frame declares {expected} bytes and has {len(view)}: cut or extended")
    body = view[:-_CHECK_BYTES]
    if blake3(body, max_threads=blake3.AUTO if len(body) > 1 << 22 else 1).digest() != view[-_CHECK_BYTES:]:
        raise FrameError("the frame's bytes do not match its checksum")
    running = _RUNNING.unpack(view[_FIXED.size : start]) if version > 1 else (bytes(16), bytes(16))
    if kind == 2 and (any(base) or any(running[0])):
        raise FrameError(f"the frame is an anchor and names a base, {base.hex()[:16]}…")
    texts = [field.hex() if any(field) else "" for field in running]
    digests = Digests("" if kind == 2 else base.hex(), target.hex(), *texts)
    header = inflate(body[start : start + stored], raw, MAX_HEADER_BYTES, "header")
    return Envelope(version, KINDS[kind], ENCODINGS[encoding], digests, header, body[start + stored :])


def inflate(data: Any, size: int, limit: int, what: str) -> bytes:
    """Return the ``size`` bytes of the zstd frame ``data``; raises FrameError for another size, one beyond ``limit``,
    or harm.
    """
    if size > limit:
        raise FrameError(f"the {what} declares {size} bytes, at most {limit} are allowed")
    try:
        if zstandard.frame_content_size(data) != size:
            raise FrameError(f"the {what} holds another size than the {size} bytes it declares")
        plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise FrameError(f"the {what} can't be decompressed: {error}") from None
    if len(plain) != size:
        raise FrameError(f"the {what} holds {len(plain)} bytes, {size} were declared")
    return plain


@dataclass
class Packer:
    """Writes numbers and texts of a header."""

    data: bytearray = field(default_factory=bytearray)

    def number(self, value: int) -> None:
        """Append ``value`` >= 0 at seven bits a byte, least significant first."""
        while value >= 128:
            self.data.append(value & 127 | 128)
            value >>= 7
        self.data.append(value)

    def text(self, value: str) -> None:
        """Append ``value`` as UTF-8 after its length in bytes; raises ValueError beyond MAX_NAME_BYTES."""
        encoded = value.encode()
        if len(encoded) > MAX_NAME_BYTES:
            raise ValueError(
                f"tensor name {value[:40]!r}… takes {len(encoded)} bytes, at most {MAX_NAME_BYTES} are carried"
            )
        self.number(len(encoded))
        self.data += encoded

    def texts(self, values: Sequence[str]) -> None:
        """Append the number of ``values`` and each of them."""
        self.number(len(values))
        for value in values:
            self.text(value)


@dataclass
class Unpacker:
    """Reads what Packer wrote; every method raises FrameError for a cut or oversized field."""

    data: bytes
    at: int = 0

    def number(self, limit: int = (1 << 63) - 1) -> int:
        """Return the next number, at most ``limit``."""
        value = 0
        for shift in range(0, 70, 7):
            if self.at >= len(self.data):
                raise FrameError("the header is cut within a number")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                if value > limit:
                    raise FrameError(f"the header holds {value} where at most {limit} is allowed")
                return value
        raise FrameError("the header holds a number of more than 64 bits")

    def count(self) -> int:
        """Return the next number as a count of items, each of which takes at least one byte of what is left."""
        return self.number(len(self.data) - self.at)

    def text(self) -> str:
        """Return the next text."""
        size = self.number(MAX_NAME_BYTES)
        raw = self.data[self.at : self.at + size]
        self.at += size
        if len(raw) != size:
            raise FrameError("the header is cut within a name")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FrameError(f"the header holds a name that is not UTF-8: {raw[:40]!r}") from None

    def end(self) -> None:
        """Check that nothing is left."""
        if self.at != len(self.data):
            raise FrameError(f"the header has {len(self.data) - self.at} bytes too many")
