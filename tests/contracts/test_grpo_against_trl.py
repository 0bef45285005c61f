"""Our loss and its gradients against TRL's GRPOTrainer on the same batch: the settings of the published runs."""

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thinwire.train.grpo import advantages, dapo_loss, token_logprobs
from thinwire.train.rollout import Rollouts, Sampling, sample

# trl and accelerate warn about a machine without accelerators and about options left alone
pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY = 31
PROMPTS = ((3, 4, 5, 6), (3, 4, 7), (8, 9))
GROUP = 8


def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=0,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{i}": i for i in range(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="w1"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w0", pad_token="w2", bos_token="w1")


def answers(policy: LlamaForCausalLM, temperature: float) -> Rollouts:
    completions, mask, logprobs = sample(
        policy,
        PROMPTS,
        group=GROUP,
        stop=frozenset({0}),
        sampling=Sampling(max_tokens=5, temperature=temperature),
        generator=torch.Generator().manual_seed(1),
    )
    rewards = (completions[:, 0] < 12).float()
    return Rollouts(PROMPTS, completions, mask, logprobs, rewards, GROUP)


def trl_loss(
    policy: LlamaForCausalLM, batch: Rollouts, gain: torch.Tensor, folder: Path, temperature: float
) -> torch.Tensor:
    from trl import GRPOConfig, GRPOTrainer

    samples = len(batch.rewards)
    arguments = GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=False,
        report_to=[],
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=0.0,
        temperature=temperature,
        num_generations=GROUP,
        per_device_train_batch_size=samples,
        gradient_checkpointing=False,
        max_completion_length=batch.mask.shape[1],
    )
    trainer = GRPOTrainer(
        model=policy,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["w3 w4"] * samples}),
        processing_class=tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    longest = max(map(len, PROMPTS))
    prompts = [batch.prompt(i) for i in range(samples)]
    inputs = {
        "prompt_ids": torch.tensor([[2] * (longest - len(p)) + list(p) for p in prompts]),
        "prompt_mask": torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts]),
        "completion_ids": batch.completions.where(batch.mask, 2),
        "completion_mask": batch.mask.long(),
        "advantages": gain,
        "old_per_token_logps": batch.logprobs,
        "num_items_in_batch": batch.mask.sum(),
    }
    return trainer.compute_loss(policy, inputs)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradients_equal_trls(tmp_path: Path, temperature: float) -> None:
    policy = model().eval()
    batch = answers(policy, temperature)
    gain = advantages(batch.rewards, GROUP)
    assert gain.any()
    with torch.no_grad():  # move the policy off the sampling one, so that ratios differ from one and both clips act
        noise = torch.Generator().manual_seed(2)
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=noise))
    now = token_logprobs(policy, batch, temperature=temperature)
    ratio = (now - batch.logprobs).exp()[batch.mask].detach()
    assert ratio.min() < 0.8
    assert ratio.max() > 1.28
    ours = dapo_loss(now, batch.logprobs, gain, batch.mask)
    ours.backward()
    gradients = [parameter.grad.clone() for parameter in policy.parameters() if parameter.grad is not None]
    policy.zero_grad()
    theirs = trl_loss(policy, batch, gain, tmp_path, temperature)
    theirs.backward()
    assert abs(float(ours.detach()) - float(theirs.detach())) < 2e-6
    assert len(gradients) == len(list(policy.parameters()))
    for mine, parameter in zip(gradients, policy.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, atol=1e-5, rtol=1e-4)


def test_advantages_equal_trls_normalisation() -> None:
    rewards = torch.rand(24, generator=torch.Generator().manual_seed(0))
    grouped = rewards.view(-1, GROUP)
    # scale_rewards="group" of TRL: (r - mean) / (std + 1e-4), std of a sample
    expected = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    torch.testing.assert_close(advantages(rewards, GROUP), expected.flatten())
