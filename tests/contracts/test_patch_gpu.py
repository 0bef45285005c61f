"""The exactness contract on tensors that lie on a CUDA device."""

import numpy as np
import pytest
import torch

from thinwire.patch import apply, decode, diff, encode, state_digest
from thinwire.patch.bits import DTYPES, bits_of, empty_bits
from thinwire.patch.running import running_digest

pytestmark = pytest.mark.gpu


def versions():
    rng = np.random.default_rng(4)
    base, target = {}, {}
    for dtype in DTYPES:
        base[str(dtype)], bits = empty_bits(dtype, (6, 9))
        target[str(dtype)], fresh = empty_bits(dtype, (6, 9))
        bits.view(np.uint8)[:] = rng.integers(0, 2, bits.nbytes, dtype=np.uint8)
        fresh[:] = np.where(rng.random(54) < 0.2, bits ^ bits.dtype.type(1), bits)
    base["scalar"], target["scalar"] = torch.tensor(1.0), torch.tensor(2.0)
    return base, target


@pytest.mark.parametrize("encoding", ["absolute", "relative", "context", "dense"])
@pytest.mark.parametrize("in_place", [False, True])
def test_every_dtype_there_and_back(encoding, in_place):
    base, target = ({name: tensor.cuda() for name, tensor in state.items()} for state in versions())
    before = dict(base)
    patch = diff(base, target)
    assert patch.target_digest == state_digest(versions()[1])
    running = running_digest(base)
    frame = encode(patch, base, encoding)
    result = apply(base, decode(frame, base, base_running=running), in_place=in_place, base_running=running)
    assert state_digest(result) == patch.target_digest
    if in_place:
        assert all(result[name] is before[name] for name in before)
        assert all(tensor.is_cuda for tensor in result.values())


def test_a_transposed_view_is_patched_where_it_lies():
    whole = torch.zeros(8, 5, dtype=torch.bfloat16, device="cuda")
    base = {"w": whole.t()}
    target = {"w": base["w"].clone()}
    target["w"][3, 7] = 1.0
    apply(base, diff(base, target), in_place=True)
    assert whole[7, 3] == 1.0
    np.testing.assert_array_equal(bits_of(base["w"]), bits_of(target["w"]))
