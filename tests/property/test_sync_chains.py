"""Whatever the chain and whatever the lag, a subscriber holds the trainer's bytes."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire.patch import state_digest
from thinwire.sync import MemoryStore, Publisher, Subscriber, SyncError

DTYPES = [torch.bfloat16, torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8]


def random_bits(shape, dtype, generator):
    """Any bit pattern: NaN payloads, infinities, signed zeros and subnormals among them."""
    count = torch.Size(shape).numel() * torch.empty(0, dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def first_state(generator):
    shapes = [(), (0, 3), (7,), (5, 4), (64, 33)]
    return {
        f"layers.{index}.weight": random_bits(shape, DTYPES[(index + offset) % len(DTYPES)], generator)
        for index, shape in enumerate(shapes)
        for offset in [int(torch.randint(0, len(DTYPES), (), generator=generator))]
    }


def next_state(state, change, generator):
    """A step of training: nothing, a few elements, all of them, or another set of tensors."""
    following = {name: tensor.clone() for name, tensor in state.items()}
    if change == "schema":
        following.pop(sorted(following)[0])
        name = f"layers.{int(torch.randint(100, 999, (), generator=generator))}.weight"
        following[name] = random_bits((3, 2), torch.float32, generator)
        return following
    for name, tensor in following.items():
        fresh = random_bits(tuple(tensor.shape), tensor.dtype, generator)
        share = {"nothing": 0.0, "few": 0.02, "half": 0.5, "all": 1.0}[change]
        chosen = torch.rand(tensor.shape, generator=generator) < share
        following[name] = torch.where(chosen, fresh, tensor)
    return following


CHANGES = st.lists(st.sampled_from(["nothing", "few", "few", "half", "all", "schema"]), min_size=1, max_size=7)


def bytes_of(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def same(state, other):
    return state_digest(state) == state_digest(other) and all(
        torch.equal(
            state[name].contiguous().view(-1).view(torch.uint8), other[name].contiguous().view(-1).view(torch.uint8)
        )
        for name in other
    )


@settings(max_examples=60, deadline=None)
@given(
    changes=CHANGES,
    anchor_every=st.integers(1, 5),
    encoding=st.sampled_from(["auto", "absolute", "relative", "dense"]),
    restarts=st.sets(st.integers(0, 6)),
    seed=st.integers(0, 2**32 - 1),
    pulls=st.lists(st.one_of(st.none(), st.integers(0, 7)), min_size=1, max_size=6),
)
def test_any_chain_at_any_lag_ends_in_the_trainers_bytes(changes, anchor_every, encoding, restarts, seed, pulls):
    generator = torch.Generator().manual_seed(seed)
    store = MemoryStore()
    trained = [first_state(generator)]
    publisher = Publisher(store, run_id="run", anchor_every=anchor_every, encoding=encoding)
    close = Subscriber(store)
    manifests = [publisher.publish(trained[0])]
    assert same(close.pull(), trained[0])
    for step, change in enumerate(changes):
        if step in restarts:
            publisher = Publisher(store, run_id="run", anchor_every=anchor_every, encoding=encoding)
        trained.append(next_state(trained[-1], change, generator))
        live = {name: tensor.clone() for name, tensor in trained[-1].items()}
        manifests.append(publisher.publish(live))
        for tensor in live.values():  # the trainer goes on in place
            bytes_of(tensor).zero_()
        assert same(close.pull(), trained[-1])
    assert [manifest.version for manifest in manifests] == list(range(len(trained)))
    late = Subscriber(store)
    for version in pulls:
        if version is not None and version >= len(trained):
            try:
                late.pull(version)
            except SyncError:
                continue
            raise AssertionError("a version that was never committed was given")
        state = late.pull(version)
        assert same(state, trained[-1 if version is None else version])
        assert late.version == (len(trained) - 1 if version is None else version)
