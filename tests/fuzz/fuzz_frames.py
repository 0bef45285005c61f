"""Throw harmed frames at the readers: each must be read or refused with FrameError, and nothing else.

``python tests/fuzz/fuzz_frames.py --seconds 600 --seed 0`` prints how many inputs were tried, read and refused, and
writes each input that did anything else to the folder of ``--faults``. The corpus is the golden frames. An input is
harmed at one of three depths, with a checksum made right again, so that the harm reaches the code behind it: bytes of
the frame, bytes of the plain header, bytes of the payload.
"""

import argparse
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import zstandard
from blake3 import blake3

from thinwire.patch import FrameError, State, apply, decode, decode_anchor, state_digest
from thinwire.patch.bits import bits_of, empty_bits
from thinwire.patch.frame import inspect, moves
from thinwire.patch.wire import seal, unseal

CORPUS = Path(__file__).parents[1] / "golden" / "frames"
EDGES = (0, 1, 2, 3, 15, 16, 127, 128, 129, 254, 255)
LIMIT = 1 << 24  # bytes that a forged frame may make the reader allocate for whole tensors


@dataclass
class Tally:
    """Counts of what became of the inputs."""

    tried: int = 0
    read: int = 0
    refused: int = 0
    slowest: float = 0.0
    faults: list[str] = field(default_factory=list)


def golden_base() -> State:
    """Return the base of the golden frames (tests/golden/test_frame_golden.py)."""

    def row(dtype: torch.dtype, shape: tuple[int, ...], start: int, step: int) -> torch.Tensor:
        tensor, bits = empty_bits(dtype, shape)
        bits[:] = (start + step * np.arange(bits.size, dtype=np.uint64)).astype(bits.dtype)
        return tensor

    shared = row(torch.float16, (4, 2), 0x3C00, 1)
    return {
        "model.weight": row(torch.bfloat16, (30, 20), 0x3C80, 7),
        "model.norm": row(torch.float32, (9,), 0x3F800000, 12345),
        "model.head": shared,
        "model.embed": shared,
    }


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return ``data`` with one to six places set, cut, doubled or swapped."""
    body = bytearray(data)
    for _ in range(int(rng.integers(1, 7))):
        if not body:
            break
        at, size = int(rng.integers(len(body))), int(rng.integers(1, 9))
        way = int(rng.integers(5))
        if way == 0:
            body[at] = int(rng.choice(EDGES))
        elif way == 1:
            body[at] ^= 1 << int(rng.integers(8))
        elif way == 2:
            del body[at : at + size]
        elif way == 3:
            body[at:at] = body[at : at + size]
        else:
            other = int(rng.integers(len(body)))
            body[at], body[other] = body[other], body[at]
    return bytes(body)


def harmed(frame: bytes, rng: np.random.Generator) -> bytes:
    """Return ``frame`` harmed at one depth, its checksum right."""
    depth = int(rng.integers(4))
    if depth == 0:
        body = frame[:11] + mutated(frame[11:-32], rng)
        return body + blake3(body).digest()
    envelope = unseal(frame)
    header, payload = envelope.header, bytes(envelope.payload)
    if depth in (1, 3):
        header = mutated(header, rng)
    if depth in (2, 3):
        payload = _mutated_payload(payload, envelope.encoding, rng)
    return seal(envelope.kind, envelope.encoding, envelope.digests, header, [payload], 1)


def _mutated_payload(payload: bytes, encoding: str, rng: np.random.Generator) -> bytes:
    if encoding == "published" and rng.integers(2):
        plain = mutated(zstandard.ZstdDecompressor().decompress(payload), rng)
        return zstandard.ZstdCompressor(level=1).compress(plain)
    return mutated(payload, rng)


def read(frame: bytes, base: State, digest: str) -> None:
    """Read ``frame`` in every way; raises FrameError when it is refused."""
    info = inspect(frame)
    moves(frame)
    if info.kind == "anchor":
        decode_anchor(frame, limit=LIMIT)
    else:
        apply(base, decode(frame, base, base_digest=digest, limit=LIMIT), base_digest=digest)


def run(seed: int, *, seconds: float = 1e9, inputs: int = 1 << 62, faults: Path | None = None) -> Tally:
    """Try ``inputs`` inputs or for ``seconds``, whichever ends first."""
    rng = np.random.default_rng(seed)
    base = golden_base()
    digest = state_digest(base)
    kept = {name: bits_of(tensor).copy() for name, tensor in base.items()}
    corpus = [path.read_bytes() for path in sorted(CORPUS.rglob("*.frame"))]
    tally, begun = Tally(), time.monotonic()
    while tally.tried < inputs and time.monotonic() - begun < seconds:
        frame = harmed(corpus[int(rng.integers(len(corpus)))], rng)
        tally.tried += 1
        start = time.monotonic()
        try:
            read(frame, base, digest)
            tally.read += 1
        except FrameError:
            tally.refused += 1
        except Exception as error:  # whatever else a reader raises is what this program looks for
            tally.faults.append(f"input {tally.tried}: {type(error).__name__}: {error}")
            if faults is not None:
                (faults / f"{seed}-{tally.tried}.frame").write_bytes(frame)
        tally.slowest = max(tally.slowest, time.monotonic() - start)
        if any(not np.array_equal(bits_of(base[name]), kept[name]) for name in kept):
            tally.faults.append(f"input {tally.tried}: the base was written")
            return tally
    return tally


def main() -> None:
    """Run from the command line; exits with 1 when a fault was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=Path, help="folder for the inputs that raised anything but FrameError")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.faults is not None:
        given.faults.mkdir(parents=True, exist_ok=True)
    tally = run(given.seed, seconds=given.seconds, faults=given.faults)
    print(
        f"{tally.tried} inputs tried, {tally.read} read, {tally.refused} refused, {len(tally.faults)} faults, "
        f"slowest {tally.slowest:.2f} s"
    )
    print("\n".join(tally.faults[:20]))
    raise SystemExit(bool(tally.faults))


if __name__ == "__main__":
    main()
