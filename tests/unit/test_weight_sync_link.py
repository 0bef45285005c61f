"""Bytes and seconds of the link, on a tiny chain of versions, and the formula that turns them into bandwidths."""

import pytest
import torch

from thinwire.sync import DirectoryStore, Publisher, Subscriber
from thinwire_lab.experiments import weight_sync_link as link
from thinwire_lab.experiments.weight_sync_setup import Config
from thinwire_lab.metrics.weight_sync import METRICS

BASE = {
    "part": "link",
    "model": "none",
    "precision": "fp32_master",
    "compute": "float32",
    "lr": 1e-6,
    "warmup": 0,
    "steps": 1,
    "prompts": 2,
    "group": 4,
    "shots": 2,
    "device": "cpu",
    "task": "arithmetic",
    "kinds": {"add_0_9": 1.0},
    "max_tokens": 3,
    "temperature": 1.0,
    "encoding": "published",
    "encodings": ("published", "relative"),
    "bits_per_second": 20e6,
    "transfers": 2,
    "compute_steps": 1,
    "published_answers": 512,
}


@pytest.fixture
def versions(tmp_path):
    publisher = Publisher(DirectoryStore(tmp_path), run_id="kept", anchor_every=10**9)
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(300, 500, generator=generator).bfloat16()
    for _ in range(5):
        publisher.publish({"w": weights, "norm": torch.ones(7).bfloat16()})
        weights.view(-1)[torch.randint(weights.numel(), (400,), generator=generator)] *= 1.01
    return tmp_path


def test_the_link_takes_the_time_of_its_bits_and_brings_the_right_version(versions):
    config = Config(**BASE)
    rows, moved = link.transfer_rows(config, 0, versions)
    assert {metric for _, metric, _, _ in rows} <= {metric.name for metric in METRICS}
    by = {(step, metric, scope): value for step, metric, value, scope in rows}
    assert len(by) == len(rows)
    for place, step in enumerate([1, 2]):
        assert by[step, "full_bytes", "all"] == 300 * 500 * 2 + 14
        assert 0.001 < by[step, "changed_share", "all"] < 400 / 150_000 + 1e-9
        for scope in BASE["encodings"]:
            assert by[step, "payload_ratio", scope] == by[step, "full_bytes", "all"] / by[step, "frame_bytes", scope]
        assert by[step, "frame_bytes", "relative"] < by[step, "frame_bytes", "published"]
        assert by[step, "frame_bytes", "published"] == moved["patch"][place].frame_bytes
        assert (by[step, "digest_checks", "all"], by[step, "digest_mismatches", "all"]) == (2, 0)
        assert by[step, "pull_ratio", "all"] > 1
    for transfer in moved["full"] + moved["patch"]:
        crossing = 8 * transfer.frame_bytes / config.bits_per_second
        assert crossing <= transfer.pull < crossing + 0.5
        assert transfer.encode > 0 < transfer.apply
    assert all(transfer.frame_bytes >= 300_014 for transfer in moved["full"])
    told = [entry for entry in rows if not entry[1].endswith(("_seconds", "pull_ratio"))]
    again, _ = link.transfer_rows(config, 0, versions)
    assert told == [entry for entry in again if not entry[1].endswith(("_seconds", "pull_ratio"))]


def test_seeds_take_other_versions_while_there_are_enough():
    kept = [4, 6, 7, 8, 9, 10, 11, 12]
    assert [link.chosen(kept, 2, seed) for seed in range(4)] == [[4, 6], [7, 8], [9, 10], [11, 12]]
    assert link.chosen(kept, 3, 2) == [4, 11, 12]
    assert link.chosen([1, 2], 9, 5) == [1, 2]
    assert link.chosen([], 2, 0) == []


def test_versions_that_change_nothing_are_counted_and_not_moved(versions):
    publisher = Publisher(DirectoryStore(versions), run_id="kept", anchor_every=10**9)
    state = Subscriber(DirectoryStore(versions)).pull()
    for _ in range(3):
        publisher.publish(state)  # an anchor of the same weights, then two empty patches
    rows, moved = link.transfer_rows(Config(**BASE | {"transfers": 9}), 0, versions)
    assert len(moved["patch"]) == 4
    assert {step for step, metric, *_ in rows if metric == "payload_ratio"} == {1, 2, 3, 4}
    assert (0, "versions_without_change", 3.0, "all") in rows


def test_a_chain_without_any_change_moves_nothing(tmp_path):
    publisher = Publisher(DirectoryStore(tmp_path), run_id="kept", anchor_every=10**9)
    for _ in range(3):
        publisher.publish({"w": torch.ones(9)})
    rows, moved = link.transfer_rows(Config(**BASE), 0, tmp_path)
    assert rows == [(0, "versions_without_change", 2.0, "all")]
    assert moved == {"full": [], "patch": []}


def test_the_bandwidth_is_where_the_formula_meets_ninety_per_cent():
    bandwidth = link.bandwidth_for(0.9, 45.0, 1.0, 269e6, 0.5)
    assert link.utilisation(45.0, 1.0, 269e6, 0.5, bandwidth) == pytest.approx(0.9)
    # 14 GB and 140 MB in a window of 50 s, nothing else counted: the published 20 and 0.2 Gbit/s
    assert link.bandwidth_for(0.9, 50.4, 0.0, 14e9, 0.0) == pytest.approx(20e9)
    assert link.bandwidth_for(0.9, 50.4, 0.0, 140e6, 0.0) == pytest.approx(0.2e9)
    assert link.bandwidth_for(0.9, 9.0, 0.6, 1.0, 0.5) is None


def transfers_of(encode, apply, size):
    return [link.Transfer(encode, 0.0, apply, size, "")]


def test_an_arm_that_no_bandwidth_helps_has_none_and_is_named():
    config = Config(**BASE)
    moved = {"full": transfers_of(40.0, 40.0, 10**6), "patch": transfers_of(0.1, 0.1, 10**4)}
    rows, unreached = link.busy_rows(config, 5.0, moved)
    found = {(metric, scope): value for _, metric, value, scope in rows}
    assert found["compute_seconds", "all"] == 5.0 * 512 / 8
    assert ("bandwidth_90", "patch") in found
    assert ("bandwidth_90", "full") not in found
    assert ("bandwidth_ratio", "all") not in found
    assert unreached == "full reaches 90 % at no bandwidth: 80.00 s to encode and apply"
    assert found["utilisation_limit", "full"] == pytest.approx(320 / 400)


def test_equal_overheads_leave_the_ratio_of_the_bytes():
    config = Config(**BASE)
    moved = {"full": transfers_of(0.5, 0.5, 10**8), "patch": transfers_of(0.5, 0.5, 10**6)}
    rows, unreached = link.busy_rows(config, 5.0, moved)
    found = {(metric, scope): value for _, metric, value, scope in rows}
    assert not unreached
    assert found["bandwidth_ratio", "all"] == pytest.approx(100.0)
    assert found["utilisation", "patch"] > found["utilisation", "full"]
