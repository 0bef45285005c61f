"""Pretrained causal language models, by path or by name, with one clear error where there is no network.

A folder is read as it is; a name is one of ``PUBLISHED`` (the checkpoints of the published experiments) or any name
that transformers can find. Nothing is unpickled and no code of a checkpoint is run: weights are read from safetensors
only.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

PUBLISHED = {
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen2.5-1.5b": "Qwen/Qwen2.5-1.5B-Instruct",
    "qwen2.5-7b": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-coder-7b": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "llama-3.2-3b": "meta-llama/Llama-3.2-3B-Instruct",
    "gemma-3-1b": "google/gemma-3-1b-it",
    "gemma-3-4b": "google/gemma-3-4b-it",
}


class PretrainedError(RuntimeError):
    """A model can't be loaded; the message says which, and what to place where."""


def _resolve(name_or_path: str | Path) -> str:
    return PUBLISHED.get(str(name_or_path), str(name_or_path))


def _missing(name_or_path: str | Path, error: Exception) -> PretrainedError:
    cause = str(error).strip().splitlines()[0]
    return PretrainedError(
        f"model {_resolve(name_or_path)!r} is neither a folder here nor reachable ({cause}); without a network, place "
        "its config.json, tokenizer files and *.safetensors in a folder and give that folder's path"
    )


def load_causal_lm(
    name_or_path: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PreTrainedModel:
    """Load a causal language model in evaluation mode, its parameters in ``dtype`` on ``device``.

    Raises PretrainedError, which names what to place where, when it is neither a folder nor reachable.
    """
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            _resolve(name_or_path), dtype=dtype, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise _missing(name_or_path, error) from error
    return model.to(device).eval()


def blank_causal_lm(
    name_or_path: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PreTrainedModel:
    """Build a model's architecture alone: its weights are noise until others are read into it.

    Raises PretrainedError as ``load_causal_lm`` does.
    """
    try:
        shape = AutoConfig.from_pretrained(_resolve(name_or_path))
    except (OSError, ValueError) as error:
        raise _missing(name_or_path, error) from error
    model: PreTrainedModel = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    return model.to(device).eval()


def load_tokenizer(name_or_path: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer that belongs to a model. Raises PretrainedError as ``load_causal_lm`` does."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(_resolve(name_or_path))
    except (OSError, ValueError) as error:
        raise _missing(name_or_path, error) from error
    return tokenizer
