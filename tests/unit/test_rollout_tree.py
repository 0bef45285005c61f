"""The prefix tree: the same numbers as the plain padded computation, for sampling and for training."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from thinwire.train.grpo import token_logprobs
from thinwire.train.prefix_tree import PrefixTree, predictors
from thinwire.train.rollout import Rollouts, Sampling, sample

VOCABULARY = 23


def model(seed: int = 0, attention: str = "sdpa") -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    config._attn_implementation = attention
    return LlamaForCausalLM(config).eval()


PROMPTS = [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4], [7]]


def draw(policy: LlamaForCausalLM, seed: int = 0, **options: object) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return sample(
        policy,
        PROMPTS,
        group=6,
        stop=frozenset({0, 9}),
        sampling=Sampling(**options),  # type: ignore[arg-type]
        generator=torch.Generator().manual_seed(seed),
    )


def rollouts(policy: LlamaForCausalLM, seed: int = 0, **options: object) -> Rollouts:
    completions, mask, logprobs = draw(policy, seed, **options)
    rewards = (completions[:, 0] % 2).float()
    return Rollouts(tuple(tuple(p) for p in PROMPTS), completions, mask, logprobs, rewards, 6)


def plain_logprobs(policy: LlamaForCausalLM, batch: Rollouts, temperature: float = 1.0) -> torch.Tensor:
    """One sequence at a time, no tree, no cache, no mask."""
    result = torch.zeros(batch.mask.shape)
    for i in range(len(batch.rewards)):
        prompt, completion = list(batch.prompt(i)), batch.completion(i)
        logits = policy(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        values = logits.log_softmax(-1)[torch.arange(len(completion)), torch.tensor(completion)]
        result = result.index_put((torch.tensor(i), torch.arange(len(completion))), values)
    return result


def test_tree_shares_prefixes_and_masks_by_ancestry() -> None:
    tree = PrefixTree()
    a = tree.walk(-1, [5, 6, 7])
    b = tree.walk(-1, [5, 6, 8])
    assert (a, b) == ([0, 1, 2], [0, 1, 3])
    inputs = tree.inputs()
    assert inputs["position_ids"].tolist() == [[0, 1, 2, 2]]
    sees = inputs["attention_mask"][0, 0] == 0
    assert sees.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 0, 1]]
    assert torch.equal(tree.inputs(2)["attention_mask"][0, 0], inputs["attention_mask"][0, 0, 2:])
    assert predictors(tree, [5], [6, 8, 1]) == [0, 1, 3]
    assert len(tree) == 4
    with pytest.raises(ValueError, match="prompt is empty"):
        predictors(tree, [], [1])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_training_logprobs_and_gradients_equal_the_unpacked_ones(attention: str, temperature: float) -> None:
    policy = model(attention=attention)
    batch = rollouts(policy, temperature=temperature)
    weights = torch.randn(batch.mask.shape, generator=torch.Generator().manual_seed(1)) * batch.mask
    gradients = []
    for values in (
        token_logprobs(policy, batch, temperature=temperature),
        plain_logprobs(policy, batch, temperature),
    ):
        policy.zero_grad()
        (values * weights).sum().backward()
        gradients.append((values.detach(), [p.grad.clone() for p in policy.parameters() if p.grad is not None]))
    (packed, packed_gradients), (plain, plain_gradients) = gradients
    torch.testing.assert_close(packed, plain, atol=2e-5, rtol=1e-5)
    assert len(packed_gradients) == len(plain_gradients) == len(list(policy.parameters()))
    for ours, theirs in zip(packed_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_sampling_reports_the_policys_own_logprobs() -> None:
    policy = model()
    batch = rollouts(policy, max_tokens=5)
    torch.testing.assert_close(batch.logprobs, plain_logprobs(policy, batch).detach(), atol=2e-5, rtol=1e-5)
    for i in range(len(batch.rewards)):
        tokens = batch.completion(i)
        assert 1 <= len(tokens) <= 5
        assert not {0, 9} & set(tokens[:-1])
        assert len(tokens) == 5 or tokens[-1] in {0, 9}
        assert bool((batch.logprobs[i, len(tokens) :] == 0).all())


def test_samples_follow_the_policys_distribution() -> None:
    policy = model()
    completions, _, _ = sample(
        policy,
        [[1, 2, 3]],
        group=20_000,
        stop=frozenset(),
        sampling=Sampling(max_tokens=2),
        generator=torch.Generator().manual_seed(0),
    )
    first = policy(torch.tensor([[1, 2, 3]])).logits[0, -1].softmax(-1).detach()
    top = int(first.argmax())
    counted = torch.bincount(completions[:, 0], minlength=VOCABULARY) / len(completions)
    assert float((counted - first).abs().max()) < 0.015
    second = policy(torch.tensor([[1, 2, 3, top]])).logits[0, -1].softmax(-1).detach()
    behind = completions[completions[:, 0] == top, 1]
    counted = torch.bincount(behind, minlength=VOCABULARY) / len(behind)
    assert float((counted - second).abs().max()) < 4 * (0.25 / len(behind)) ** 0.5


def test_one_generator_state_one_result() -> None:
    policy = model()
    first, again, other = draw(policy, 3), draw(policy, 3), draw(policy, 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_cuts_keep_only_likely_tokens() -> None:
    policy = model()
    likely = policy(torch.tensor([PROMPTS[0]])).logits[0, -1].softmax(-1).sort(descending=True)
    allowed_by_count = set(likely.indices[:3].tolist())
    nucleus = int((likely.values.cumsum(0) < 0.6).sum()) + 1
    allowed_by_mass = set(likely.indices[:nucleus].tolist())
    for options, allowed in (({"top_k": 3}, allowed_by_count), ({"top_p": 0.6}, allowed_by_mass)):
        seen = {t for seed in range(30) for t in draw(policy, seed, max_tokens=1, **options)[0][:6, 0].tolist()}
        assert seen == allowed


def test_a_prompt_that_another_samples_answer_runs_into_is_no_trap() -> None:
    policy = model()
    prompts = [[1], *[[1, t] for t in range(VOCABULARY)]]
    completions, mask, logprobs = sample(
        policy,
        prompts,
        group=4,
        stop=frozenset(),
        sampling=Sampling(max_tokens=3),
        generator=torch.Generator().manual_seed(0),
    )
    batch = Rollouts(tuple(tuple(p) for p in prompts), completions, mask, logprobs, torch.zeros(len(mask)), 4)
    torch.testing.assert_close(logprobs, plain_logprobs(policy, batch).detach(), atol=2e-5, rtol=1e-5)


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        sample(model(), [[]], group=1, stop=frozenset(), sampling=Sampling(), generator=torch.Generator())


def test_prompts_in_several_trees_get_the_same_answers() -> None:
    policy = model()
    together, apart = draw(policy, 5), draw(policy, 5, prompts_at_once=3)
    assert torch.equal(together[0], apart[0])
    assert torch.equal(together[1], apart[1])
    torch.testing.assert_close(together[2], apart[2], atol=2e-5, rtol=1e-5)
