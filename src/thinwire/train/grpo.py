"""The GRPO loss with DAPO's token-level mean and asymmetric clip, and no KL term.

For a sample i of a group with rewards r, the advantage is A_i = (r_i - mean(r)) / (std(r) + 1e-4). With the ratio
rho = pi(token) / pi_old(token),

    loss = - sum over all tokens of min(rho * A, clip(rho, 1 - 0.2, 1 + 0.28) * A) / number of tokens.

All tokens of the batch weigh the same, whatever the length of their answer. The form and the clip are those of TRL's
``loss_type="dapo"``, which the published runs used. A group whose answers all earned the same has no advantage; a
batch of such groups has nothing to teach.
"""

import torch
from transformers import PreTrainedModel

from thinwire.train.prefix_tree import PrefixTree, predictors
from thinwire.train.rollout import Rollouts

STD_FLOOR = 1e-4


def advantages(rewards: torch.Tensor, group: int) -> torch.Tensor:
    """Return the group-normalised advantages [samples] of ``rewards`` [samples], groups being consecutive.

    The standard deviation is that of a sample (n - 1). Raises ValueError for groups of fewer than two or a remainder.
    """
    if group < 2 or len(rewards) % group:
        raise ValueError(f"{len(rewards)} samples do not make groups of {group}; a group needs at least two")
    grouped = rewards.float().view(-1, group)
    centred = grouped - grouped.mean(dim=1, keepdim=True)
    # equal rewards are exactly no advantage, even where their mean is rounded
    flat = (grouped == grouped[:, :1]).all(dim=1, keepdim=True)
    return torch.where(flat, 0.0, centred / (grouped.std(dim=1, keepdim=True) + STD_FLOOR)).flatten()


def dapo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantage: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> torch.Tensor:
    """Return the scalar loss of ``logprobs`` and ``old_logprobs`` [samples, tokens] in nats.

    ``advantage`` is [samples]; ``mask`` [samples, tokens] says which tokens count.
    """
    ratio = (logprobs - old_logprobs).exp()
    gain = advantage[:, None]
    surrogate = torch.minimum(ratio * gain, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * gain)
    return -(surrogate * mask).sum() / mask.sum().clamp(min=1)


def token_logprobs(
    model: PreTrainedModel,
    rollouts: Rollouts,
    samples: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    compute: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the log probability [samples, tokens] in nats of each token of each answer, 0 behind the answer's end.

    Differentiable; the answers are computed as one prefix tree. ``samples`` [n] picks some of them (default: all).
    ``compute`` BF16 means autocast.
    """
    tree = PrefixTree()
    chosen = torch.arange(len(rollouts.rewards)) if samples is None else samples
    paths = [predictors(tree, rollouts.prompt(i), rollouts.completion(i)) for i in chosen.tolist()]
    kept = sorted({node for path in paths for node in path})
    row = {node: r for r, node in enumerate(kept)}
    device = model.device
    with torch.autocast(device.type, torch.bfloat16, enabled=compute == torch.bfloat16):
        output = model(**tree.inputs(device=device), use_cache=False, logits_to_keep=torch.tensor(kept, device=device))
    table = (output.logits[0].float() / temperature).log_softmax(-1)
    mask = rollouts.mask[chosen].to(device)
    rows = torch.tensor([row[node] for path in paths for node in path], device=device)
    values = table[rows, rollouts.completions[chosen].to(device)[mask]]
    return torch.zeros(mask.shape, device=device).masked_scatter(mask, values)
