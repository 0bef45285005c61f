"""More than 2^31 elements and more than 4 GiB of bytes, on sparse files instead of memory."""

import numpy as np
import pytest
import torch

from thinwire.patch import apply, decode, diff, encode
from thinwire.patch.digest import DigestTree, TensorDigest

pytestmark = pytest.mark.slow


def mapped(path, size, changes):
    row = np.memmap(path, dtype=np.uint16, mode="w+", shape=(size,))
    for place, value in changes.items():
        row[place] = value
    return torch.from_numpy(row.view(np.int16)).view(torch.bfloat16)


def tree(letter, size):
    """A stand-in for the digest, whose own reading of 4 GiB is not under test here."""
    return DigestTree({"w": TensorDigest(10, (size,), letter * 32)})


@pytest.mark.parametrize("encoding", ["relative", "absolute"])
def test_positions_beyond_31_bits_come_over(tmp_path, encoding):
    size = (1 << 31) + 1000
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
