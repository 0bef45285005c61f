"""More than 2^31 elements and more than 4 GiB of bytes, on sparse files instead of memory."""

import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from thinwire.patch import apply, decode, diff, encode
from thinwire.patch.digest import DigestTree, TensorDigest
from thinwire.patch.files import build_header, open_model

SIZE = (1 << 31) + 1000
PLACES = np.array([0, (1 << 31) - 1, 1 << 31, (1 << 31) + 5, SIZE - 1])


def mapped(path, size, changes):
    row = np.memmap(path, dtype=np.uint16, mode="w+", shape=(size,))
    for place, value in changes.items():
        row[place] = value
    return torch.from_numpy(row.view(np.int16)).view(torch.bfloat16)


def tree(letter, size):
    """A stand-in for the digest, whose own reading of 4 GiB is not under test here."""
    return DigestTree({"w": TensorDigest(10, (size,), letter * 32)})


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["relative", "absolute"])
def test_positions_beyond_31_bits_come_over(tmp_path, encoding):
    size = SIZE
    old = {0: 0x3F80, (1 << 31) + 5: 0x8000}
    fresh = {0: 0x3F81, (1 << 31) - 1: 7, 1 << 31: 0xFFFF, (1 << 31) + 5: 0, size - 1: 0x7F80}
    base = {"w": mapped(tmp_path / "base", size, old)}
    target = {"w": mapped(tmp_path / "target", size, fresh)}
    assert base["w"].nbytes > 1 << 32
    patch = diff(base, target, base_tree=tree(b"b", size), target_tree=tree(b"t", size))
    assert patch.tensors[0].positions.tolist() == sorted(fresh)
    assert patch.total == size
    frame = encode(patch, base, encoding)
    assert len(frame) < 400
    held = patch.base_digest
    apply(base, decode(frame, base, base_digest=held), in_place=True, base_digest=held)
    np.testing.assert_array_equal(
        base["w"].view(torch.int16).numpy()[sorted(fresh)].view(np.uint16), list(fresh.values())
    )
    assert torch.equal(base["w"][1 << 30 :].view(torch.int16), target["w"][1 << 30 :].view(torch.int16))


def sparse_file(path):
    """A safetensors file of more than 2^31 BF16 zeros, 4 GiB and some, of which the disk holds the header only."""
    header, _ = build_header({"w": torch.empty(SIZE, dtype=torch.bfloat16, device="meta")}, None)
    path.write_bytes(header)
    os.truncate(path, len(header) + 2 * SIZE)
    return len(header)


def written(path, start, place):
    with path.open("rb") as file:
        file.seek(start + 2 * int(place))
        return int.from_bytes(file.read(2), "little")


def test_places_beyond_31_bits_are_written_in_the_file(tmp_path):
    path = tmp_path / "m"
    start = sparse_file(path)
    bits = np.arange(1, 6, dtype=np.uint16) << 9
    with open_model(path, write=True) as model:
        assert model.nbytes > 1 << 32
        model.row("w")[PLACES] = bits
        model.flush()
    assert [written(path, start, place) for place in PLACES] == bits.tolist()
    with open_model(path) as model:
        weights = model.state()["w"].view(torch.int16)
        assert weights.shape == (SIZE,)
        assert weights[torch.from_numpy(PLACES)].tolist() == bits.astype(np.int16).tolist()
        assert not weights[(1 << 31) + 6 : -1].any()
    assert path.stat().st_blocks * 512 < 1 << 20


PATCHED = textwrap.dedent(
    """
    import os, signal, sys, threading, time
    from pathlib import Path

    import numpy as np
    import torch
    from thinwire.patch import Patch, encode, undo
    from thinwire.patch.files import hash_state, open_model
    from thinwire.patch.patch import TensorPatch

    torch.set_num_threads(2)
    word, path, places = sys.argv[1], Path(sys.argv[2]), np.array([int(place) for place in sys.argv[3:]])
    frame = path.with_name("frame")

    peak = 0

    def watch():
        global peak
        while True:
            with open("/proc/self/status") as file:
                peak = max(peak, next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon")))
            time.sleep(0.005)

    threading.Thread(target=watch, daemon=True).start()

    if word == "encode":
        with open_model(path) as model:
            state = model.state()
            part = TensorPatch("w", places, np.arange(1, 6, dtype=np.uint16) << 9)
            ends = hash_state(state).root, hash_state(state, {"w": part}).root
            frame.write_bytes(encode(Patch(*ends, state["w"].numel(), (part,)), state))
    elif word == "restore":
        assert undo.restore(path) is not None
    else:
        def step(name):
            if name == word:
                print(peak, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

        undo._step = step
        undo.apply_in_place(path, frame.read_bytes())
    print(peak, flush=True)
    """
)


@pytest.mark.slow
def test_a_model_beyond_4_gib_is_patched_killed_and_restored_in_little_memory(tmp_path):
    path = tmp_path / "m"
    start = sparse_file(path)

    def run(word):
        words = [sys.executable, "-c", PATCHED, word, path, *map(str, PLACES)]
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
        assert int(done.stdout) < 1 << 30, word
        return done.returncode, [written(path, start, place) for place in PLACES]

    assert run("encode") == (0, [0] * 5)
    assert run("wrote w") == (-9, [place << 9 for place in range(1, 6)])
    assert run("restore") == (0, [0] * 5)
    assert run("to the end") == (0, [place << 9 for place in range(1, 6)])
