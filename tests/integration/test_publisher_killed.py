"""A publisher killed at any moment: the store yields a verified version, and a restart goes on."""

import multiprocessing
import random
import time

import torch

from thinwire.patch import state_digest
from thinwire.sync import DirectoryStore, Publisher, Subscriber


def state_of(version):
    weights = torch.arange(60_000, dtype=torch.float32).bfloat16()
    weights[version * 7 : version * 7 + 500] = float(version)
    return {"a.weight": weights.reshape(200, 300), "b.weight": torch.full((5,), float(version))}


def publish_for_ever(path, first):
    torch.set_num_threads(1)
    publisher = Publisher(DirectoryStore(path), run_id="run", anchor_every=3)
    while True:
        publisher.publish(state_of(publisher.next_version))
        first.set()


def test_a_store_outlives_its_publisher_at_any_moment(tmp_path):
    chance = random.Random(0)
    spawn = multiprocessing.get_context("spawn")
    store = DirectoryStore(tmp_path)
    follower = Subscriber(store)
    reached = -1
    for _ in range(4):
        first = spawn.Event()
        process = spawn.Process(target=publish_for_ever, args=(tmp_path, first), daemon=True)
        process.start()
        assert first.wait(60)
        time.sleep(chance.random() * 0.1)
        process.kill()
        process.join()
        late = Subscriber(store)
        for reader in (late, follower):
            state = reader.pull()
            assert state_digest(state) == state_digest(state_of(reader.version))
        assert late.version == follower.version > reached
        reached = late.version
        for version in range(reached + 1):
            assert state_digest(late.pull(version)) == state_digest(state_of(version))
    manifest = Publisher(store, run_id="run", anchor_every=3).publish(state_of(5000))
    assert manifest.version == reached + 1
    assert torch.equal(follower.pull()["b.weight"], torch.full((5,), 5000.0))
