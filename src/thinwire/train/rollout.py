"""Sampling answers from a policy and scoring them.

All prompts of a step are computed as one prefix tree (see ``prefix_tree``): the shared shots once, each question
once, and at each later step only the distinct tokens that were drawn. Every random number comes from the generator
that is passed in: one uniform number an answer and a token, drawn before the first token, so that how long one answer
gets does not shift the randomness of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from thinwire.tasks import Question, Task
from thinwire.train.prefix_tree import PrefixTree


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn: ``temperature`` divides the logits; ``top_k`` 0 and ``top_p`` 1 cut nothing off.

    ``max_tokens`` is the longest answer; ``compute`` is the dtype of the forward pass, FP32 or BF16 autocast;
    ``prompts_at_once`` bounds how many questions share a tree (0: all; 1 where answers are long).
    """

    max_tokens: int = 4
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    compute: torch.dtype = torch.float32
    prompts_at_once: int = 0


@dataclass(frozen=True)
class Rollouts:
    """A step's answers: ``group`` samples of each prompt, in the prompts' order.

    ``prompts``: one token list a question. ``completions`` [samples, tokens] int64, 0 behind the end; ``mask`` says
    which tokens belong to the answer, its stop token among them. ``logprobs`` [samples, tokens] FP32 in nats, of the
    sampling policy at its temperature before any top-k or top-p cut. ``rewards`` [samples] FP32.
    """

    prompts: tuple[tuple[int, ...], ...]
    completions: torch.Tensor
    mask: torch.Tensor
    logprobs: torch.Tensor
    rewards: torch.Tensor
    group: int

    def prompt(self, sample: int) -> tuple[int, ...]:
        """Return the prompt of a sample."""
        return self.prompts[sample // self.group]

    def completion(self, sample: int) -> list[int]:
        """Return the tokens of a sample's answer, without padding."""
        tokens: list[int] = self.completions[sample][self.mask[sample]].tolist()
        return tokens


def _distribution(logprobs: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Turn log probabilities [rows, vocabulary] into the cumulative distribution to draw from, in FP64."""
    weights = logprobs.double().exp()
    if 0 < sampling.top_k < weights.shape[-1]:
        least = weights.topk(sampling.top_k, dim=-1).values[:, -1:]
        weights = weights.where(weights >= least, 0.0)
    if sampling.top_p < 1.0:
        ordered, order = weights.sort(dim=-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        dropped = before >= sampling.top_p * ordered.sum(-1, keepdim=True)
        weights = weights.masked_fill(dropped.gather(-1, order.argsort(-1)), 0.0)
    return weights.cumsum(-1)


class _Decoder:
    """The model with its cache: gives the log probabilities behind chosen nodes of a growing tree."""

    def __init__(self, model: PreTrainedModel, sampling: Sampling) -> None:
        self.model = model
        self.sampling = sampling
        self.cache = DynamicCache(config=model.config)
        self.computed = 0

    def logprobs(self, tree: PrefixTree, nodes: list[int]) -> torch.Tensor:
        """Compute the nodes added since the last call and return [len(nodes), vocabulary]; ``nodes`` are among
        them."""
        device = self.model.device
        rows = torch.tensor([node - self.computed for node in nodes], device=device)
        with torch.autocast(device.type, torch.bfloat16, enabled=self.sampling.compute == torch.bfloat16):
            output = self.model(
                **tree.inputs(self.computed, device=device),
                cache=self.cache,
                use_cache=True,
                logits_to_keep=rows,
            )
        self.computed = len(tree)
        logits: torch.Tensor = output.logits[0].float() / self.sampling.temperature
        return logits.log_softmax(-1).cpu()


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    group: int,
    stop: frozenset[int],
    sampling: Sampling,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw ``group`` answers to each prompt; return completions, mask and logprobs as ``Rollouts`` describes them.

    An answer ends with the first token of ``stop`` or after ``sampling.max_tokens``. ``generator`` is a CPU
    generator. Raises ValueError for an empty prompt.
    """
    if any(len(prompt) == 0 for prompt in prompts):
        raise ValueError("an empty prompt: an answer needs at least one token before it")
    samples = len(prompts) * group
    uniform = torch.rand(samples, sampling.max_tokens, generator=generator, dtype=torch.float64)
    completions = torch.zeros(samples, sampling.max_tokens, dtype=torch.int64)
    mask = torch.zeros(samples, sampling.max_tokens, dtype=torch.bool)
    logprobs = torch.zeros(samples, sampling.max_tokens)
    at_once = sampling.prompts_at_once or max(len(prompts), 1)
    for first in range(0, len(prompts), at_once):
        asked = prompts[first : first + at_once]
        part = slice(first * group, (first + len(asked)) * group)
        _sample_tree(
            _Decoder(model, sampling), asked, stop, uniform[part], (completions[part], mask[part], logprobs[part])
        )
    return completions, mask, logprobs


def _sample_tree(
    decoder: _Decoder,
    prompts: Sequence[Sequence[int]],
    stop: frozenset[int],
    uniform: torch.Tensor,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    """Fill ``results`` (completions, mask, logprobs) with the answers that the numbers ``uniform`` choose."""
    completions, mask, logprobs = results
    tree = PrefixTree()
    ends = [tree.walk(-1, prompt)[-1] for prompt in prompts]
    group = len(mask) // len(prompts)
    at = [end for end in ends for _ in range(group)]
    running = list(range(len(at)))
    for step in range(decoder.sampling.max_tokens):
        frontier = {node: row for row, node in enumerate(sorted({at[i] for i in running}))}
        rows = decoder.logprobs(tree, list(frontier))
        cumulative = _distribution(rows, decoder.sampling)
        grown: dict[tuple[int, int], int] = {}
        going_on = []
        for i in running:
            row = frontier[at[i]]
            # right=True passes over tokens of probability zero, whose cumulative value does not rise
            level = uniform[i, step] * cumulative[row, -1]
            token = int(torch.searchsorted(cumulative[row], level, right=True))
            completions[i, step], mask[i, step], logprobs[i, step] = token, True, rows[row, token]
            if token in stop or step + 1 == decoder.sampling.max_tokens:
                continue
            if (at[i], token) not in grown:
                # always a node of its own: one that another prompt made may be computed already
                grown[at[i], token] = tree.append(at[i], token)
            at[i] = grown[at[i], token]
            going_on.append(i)
        running = going_on
        if not running:
            break


def collect(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    questions: Sequence[Question],
    *,
    group: int,
    sampling: Sampling,
    generator: torch.Generator,
) -> Rollouts:
    """Ask ``questions`` behind the task's prefix, ``group`` answers each, and reward them by the task.

    An answer ends at one of the task's stops (each a single token) or at the tokenizer's end token. Raises ValueError
    for a stop that is not one token.
    """
    shots = _encode(tokenizer, task.prefix)
    prompts = tuple(tuple(shots + _encode(tokenizer, question.prompt)) for question in questions)
    stops = [_encode(tokenizer, stop) for stop in task.stops]
    if any(len(tokens) != 1 for tokens in stops):
        raise ValueError(f"the stops {task.stops} must each be one token of this tokenizer")
    stop = frozenset([tokens[0] for tokens in stops] + [tokenizer.eos_token_id])
    completions, mask, logprobs = sample(model, prompts, group=group, stop=stop, sampling=sampling, generator=generator)
    texts = [tokenizer.decode(tokens[kept].tolist()) for tokens, kept in zip(completions, mask, strict=True)]
    rewards = torch.tensor([task.reward(text, questions[i // group]) for i, text in enumerate(texts)])
    return Rollouts(prompts, completions, mask, logprobs, rewards, group)


def _encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    tokens: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return tokens
