"""The loss by hand, its degenerate cases, and whole steps of the trainer."""

import math

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from thinwire.train.grpo import advantages, dapo_loss
from thinwire.train.loop import GrpoSettings, GrpoTrainer
from thinwire.train.rollout import Rollouts, Sampling, sample
from thinwire.train.weights import STORAGES

PROMPTS = ((1, 2, 3), (1, 2, 4))


def trainer(storage: str, **settings: object) -> GrpoTrainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
    )
    return GrpoTrainer(STORAGES[storage](LlamaForCausalLM(config)), GrpoSettings(**settings))  # type: ignore[arg-type]


def answers(trained: GrpoTrainer, seed: int, *, flat: bool = False, group: int = 16) -> Rollouts:
    completions, mask, logprobs = sample(
        trained.model,
        PROMPTS,
        group=group,
        stop=frozenset({0}),
        sampling=Sampling(max_tokens=3),
        generator=torch.Generator().manual_seed(seed),
    )
    rewards = torch.full((len(mask),), 1 / 3) if flat else (completions[:, 0] < 6).float()
    return Rollouts(PROMPTS, completions, mask, logprobs, rewards, group)


def test_advantages_by_hand() -> None:
    values = advantages(torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0]), 2)
    spread = math.sqrt(0.5)
    expected = 0.5 / (spread + 1e-4)
    torch.testing.assert_close(values, torch.tensor([expected, -expected, -expected, expected, 0.0, 0.0]))


def test_equal_rewards_are_exactly_no_advantage() -> None:
    assert not advantages(torch.full((21,), 0.1), 7).any()
    with pytest.raises(ValueError, match="groups of 4"):
        advantages(torch.ones(6), 4)
    with pytest.raises(ValueError, match="at least two"):
        advantages(torch.ones(6), 1)


def test_loss_by_hand_with_both_clips() -> None:
    old = torch.zeros(2, 2)
    now = torch.tensor([[1.5, 0.5], [1.1, 0.9]]).log()
    mask = torch.tensor([[True, True], [True, False]])
    gain = torch.tensor([1.0, -2.0])
    # A > 0: min(1.5, 1.28) and min(0.5, 0.8); A < 0: the larger of the two ratios' losses
    expected = -(1.28 + 0.5 - 2.0 * 1.1) / 3
    assert float(dapo_loss(now, old, gain, mask)) == pytest.approx(expected, rel=1e-6)
    low = dapo_loss(torch.tensor([[0.5]]).log(), torch.zeros(1, 1), torch.tensor([-1.0]), torch.tensor([[True]]))
    assert float(low) == pytest.approx(0.8)


@pytest.mark.parametrize("storage", STORAGES)
def test_training_raises_the_reward(storage: str) -> None:
    trained = trainer(storage, lr=1e-2)
    rewards = [trained.step(answers(trained, seed)).reward for seed in range(25)]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2


@pytest.mark.parametrize("storage", STORAGES)
def test_a_step_without_advantage_changes_nothing(storage: str) -> None:
    trained = trainer(storage, lr=1e-2)
    trained.step(answers(trained, 0))
    before = {name: p.detach().clone() for name, p in trained.weights.stored.items()}
    report = trained.step(answers(trained, 1, flat=True))
    assert (report.has_advantage, report.loss, report.grad_norm, report.lr) == (False, 0.0, 0.0, 0.0)
    assert trained.updates == 1
    assert all(torch.equal(before[name], p) for name, p in trained.weights.stored.items())
    assert all(p.grad is not None and not p.grad.any() for p in trained.weights.stored.values())
    assert trained.step(answers(trained, 2)).has_advantage


@pytest.mark.parametrize("storage", STORAGES)
def test_two_runs_give_the_same_bits(storage: str) -> None:
    states = []
    for _ in range(2):
        trained = trainer(storage, lr=1e-2)
        for seed in range(4):
            trained.step(answers(trained, seed))
        states.append({name: value.clone() for name, value in trained.weights.published_state().items()})
    assert all(torch.equal(states[0][name].view(torch.int16), states[1][name].view(torch.int16)) for name in states[0])


def test_warm_up_reaches_the_rate_and_keeps_it() -> None:
    trained = trainer("fp32_master", lr=3e-4, warmup=3)
    rates = [trained.step(answers(trained, seed)).lr for seed in range(5)]
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 3e-4, 3e-4])


def test_first_step_is_on_policy_either_way_and_later_ones_need_the_samplers_logprobs() -> None:
    on, off = trainer("fp32_master", lr=1e-2), trainer("fp32_master", lr=1e-2, on_policy=False)
    batch = answers(on, 0)
    assert on.backward(batch)[0] == pytest.approx(off.backward(batch)[0], abs=1e-5)
    on.step(batch)
    off.step(batch)
    assert abs(on.backward(batch)[0] - off.backward(batch)[0]) > 1e-3


def test_gradients_are_clipped_to_norm_one() -> None:
    trained = trainer("fp32_master", lr=1e-3, max_norm=1e-3)
    report = trained.step(answers(trained, 0))
    assert report.grad_norm > 1e-3
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in trained.weights.stored.values() if p.grad is not None))
    assert norm == pytest.approx(1e-3, rel=1e-3)


def test_passes_over_parts_of_the_batch_add_up() -> None:
    whole, parts = trainer("fp32_master"), trainer("fp32_master", samples_at_once=5)
    batch = answers(whole, 0)
    assert whole.backward(batch)[0] == pytest.approx(parts.backward(batch)[0], abs=1e-6)
    for name, parameter in whole.weights.stored.items():
        torch.testing.assert_close(parameter.grad, parts.weights.stored[name].grad, atol=1e-6, rtol=1e-4)
