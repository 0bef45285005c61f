"""Training through patches is training through full weights: same digests, losses and rewards, in real processes."""

import string

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from thinwire.train.rollout import Rollouts
from thinwire_lab.experiments.weight_sync_setup import Config
from thinwire_lab.experiments.weight_sync_training import dump_rollouts, load_rollouts, run_training

STEPS = 4


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A random Llama of 30,000 parameters that reads single characters."""
    folder = tmp_path_factory.mktemp("model")
    letters = ["<end>", *string.digits, *" +-*=\n"]
    inner = Tokenizer(models.WordLevel({letter: index for index, letter in enumerate(letters)}, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(letters),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def config_of(arm, precision):
    return Config(
        part="training",
        arm=arm,
        model="none",
        precision=precision,
        compute="float32",
        lr=3e-4,
        warmup=0,
        steps=STEPS,
        prompts=6,
        group=8,
        shots=2,
        device="cpu",
        task="arithmetic",
        kinds={"add_0_9": 1.0, "subtract_0_9": 1.0},
        max_tokens=1,
        temperature=1.0,
        encoding="relative",
        encodings=("relative",),
        bits_per_second=1e9,
        transfers=1,
        compute_steps=1,
        published_answers=512,
    )


CLOCKS = {"publish_seconds", "pull_seconds", "rollout_seconds", "train_seconds"}
MOVED = {"frame_bytes"}


@pytest.mark.parametrize("precision", ["fp32_master", pytest.param("bf16", marks=pytest.mark.slow)])
def test_both_arms_train_alike_and_patches_move_less(model_folder, tmp_path, precision):
    found = {}
    for arm in ("full", "patch"):
        folder = tmp_path / arm
        rows = run_training(config_of(arm, precision), 0, folder, str(model_folder), tmp_path, threads=1)
        found[arm] = {(metric, scope, step): value for step, metric, value, scope in rows}
        assert len(found[arm]) == len(rows)
        assert len(list(folder.glob("frames/*"))) == (2 if arm == "full" else STEPS + 1)
    full, patch = found["full"], found["patch"]
    assert full.keys() == patch.keys()
    told = [key for key in full if key[0] not in CLOCKS | MOVED]
    assert {key: full[key] for key in told} == {key: patch[key] for key in told}
    digests = [full["state_digest", "trainer", version] for version in range(STEPS + 1)]
    assert digests == [full["state_digest", "worker", version] for version in range(STEPS + 1)]
    assert len(set(digests)) > 2  # it did train
    assert sum(full["digest_mismatches", "all", version] for version in range(STEPS + 1)) == 0
    for version in range(1, STEPS + 1):
        assert patch["frame_bytes", "all", version] < full["frame_bytes", "all", version]
        assert full["frame_bytes", "all", version] >= full["full_bytes", "all", version]


def test_rollouts_survive_the_store():
    generator = torch.Generator().manual_seed(0)
    rollouts = Rollouts(
        prompts=((1, 2, 3), (4,)),
        completions=torch.randint(9, (4, 3), generator=generator),
        mask=torch.rand(4, 3, generator=generator) < 0.5,
        logprobs=-torch.rand(4, 3, generator=generator),
        rewards=torch.tensor([0.0, 1.0, 1.0, 0.0]),
        group=2,
    )
    read = load_rollouts(dump_rollouts(rollouts))
    assert (read.prompts, read.group) == (rollouts.prompts, rollouts.group)
    for name in ("completions", "mask", "logprobs", "rewards"):
        assert torch.equal(getattr(read, name), getattr(rollouts, name))
        assert getattr(read, name).dtype == getattr(rollouts, name).dtype
