"""From questions to rewarded answers with a real tokenizer: encoding, stops and rewards."""

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thinwire.tasks import Arithmetic, Question, verify
from thinwire.train.rollout import Sampling, collect

CHARACTERS = ["<end>", "\n", *"0123456789+-*= "]


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character."""
    inner = Tokenizer(models.WordLevel({c: i for i, c in enumerate(CHARACTERS)}, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")


def policy() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(CHARACTERS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config).eval()


def test_answers_are_asked_behind_the_shots_and_rewarded_by_their_text() -> None:
    task = Arithmetic({"add_0_9": 1.0}, shots=2, generator=torch.Generator().manual_seed(0))
    asked = task.draw(5, torch.Generator().manual_seed(1))
    rollouts = collect(
        policy(),
        tokenizer(),
        task,
        asked,
        group=40,
        sampling=Sampling(max_tokens=3, top_k=12),
        generator=torch.Generator().manual_seed(2),
    )
    text = tokenizer()
    assert [text.decode(list(p)) for p in rollouts.prompts] == [task.prefix + q.prompt for q in asked]
    answers = [text.decode(rollouts.completion(i)) for i in range(200)]
    assert rollouts.rewards.tolist() == [verify(a, asked[i // 40].answer) for i, a in enumerate(answers)]
    assert 0 < rollouts.rewards.sum() < 200
    assert any(answer.endswith("\n") for answer in answers)
    assert all("\n" not in answer[:-1] for answer in answers)


def test_a_stop_must_be_one_token() -> None:
    task = Arithmetic({"add_0_9": 1.0}, shots=1, generator=torch.Generator().manual_seed(0))
    task.stops = ("12",)
    with pytest.raises(ValueError, match="each be one token"):
        collect(
            policy(),
            tokenizer(),
            task,
            [Question("add_0_9", "1 + 1 =", "2")],
            group=2,
            sampling=Sampling(),
            generator=torch.Generator(),
        )
