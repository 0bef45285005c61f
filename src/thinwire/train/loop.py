"""One trainer: answers in, one optimizer step out.

``GrpoTrainer.step`` is ``backward`` then ``update``; whoever needs something between the two (a gradient all-reduce)
calls them apart. Nothing here is random: the same weights and the same rollouts give the same bits, at the same
thread count.
"""

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from thinwire.train.grpo import advantages, dapo_loss, token_logprobs
from thinwire.train.rollout import Rollouts
from thinwire.train.weights import Weights


@dataclass(frozen=True)
class GrpoSettings:
    """The published optimizer settings: AdamW, weight decay 0, gradient norm at most 1, clip 0.2 / 0.28.

    ``lr`` is reached in ``warmup`` optimizer steps, linearly (the first has ``lr / warmup``), and kept. ``on_policy``
    takes the step's own log probabilities as the old ones (one step a batch: the ratio is one); otherwise those of
    the sampling policy count. ``compute`` is the dtype of the forward pass: FP32, or BF16 for autocast.
    ``samples_at_once`` bounds how many answers one backward pass takes (0: all); gradients add up over the passes.
    """

    lr: float = 3e-6
    warmup: int = 0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    temperature: float = 1.0
    on_policy: bool = True
    compute: torch.dtype = torch.float32
    samples_at_once: int = 0


@dataclass(frozen=True)
class StepReport:
    """What a step did: mean ``reward``; ``loss``; ``grad_norm`` before clipping; ``lr`` used (0 without an update).

    ``has_advantage`` is false when every group earned equal rewards: loss and gradient are zero and the optimizer,
    its moments and its step count stay as they were.
    """

    reward: float
    loss: float
    grad_norm: float
    lr: float
    has_advantage: bool


class GrpoTrainer:
    """GRPO on ``weights``: AdamW in the storage's dtype, one step a batch."""

    def __init__(self, weights: Weights, settings: GrpoSettings) -> None:
        """Make the optimizer; the model is put in evaluation mode (no dropout: ratios would be noise)."""
        self.weights = weights
        self.settings = settings
        self.updates = 0
        weights.model.eval()
        self._optimizer = weights.optimizer(
            settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay
        )

    @property
    def model(self) -> PreTrainedModel:
        """The model that computes, for sampling."""
        model = self.weights.model
        assert isinstance(model, PreTrainedModel)
        return model

    def backward(self, rollouts: Rollouts) -> tuple[float, bool]:
        """Leave the unclipped gradients in ``weights.stored``; return the loss and whether any group had an
        advantage.

        Without an advantage the gradients are zeros, so that an all-reduce with other trainers still works.
        """
        gain = advantages(rollouts.rewards, rollouts.group)
        self.weights.zero_gradients()
        taught = bool(gain.any())
        loss = 0.0
        if taught:
            at_once = self.settings.samples_at_once or len(gain)
            for first in range(0, len(gain), at_once):
                part = torch.arange(first, min(first + at_once, len(gain)))
                share = self._loss(rollouts, gain, part)
                share.backward()  # type: ignore[no-untyped-call]
                loss += float(share.detach())
        self.weights.collect()
        return loss, taught

    def _loss(self, rollouts: Rollouts, gain: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
        """Return what the samples ``part`` add to the loss of the batch."""
        settings = self.settings
        device = self.model.device
        now = token_logprobs(self.model, rollouts, part, temperature=settings.temperature, compute=settings.compute)
        mask = rollouts.mask[part].to(device)
        loss = dapo_loss(
            now,
            now.detach() if settings.on_policy else rollouts.logprobs[part].to(device),
            gain[part].to(device),
            mask,
            clip_low=settings.clip_low,
            clip_high=settings.clip_high,
        )
        return loss * (mask.sum() / rollouts.mask.sum())

    def update(self) -> tuple[float, float]:
        """Clip the gradients, make one AdamW step and refresh the model; return the norm before clipping and the
        lr."""
        settings = self.settings
        norm = torch.nn.utils.clip_grad_norm_(self.weights.stored.values(), settings.max_norm)
        lr = settings.lr * min(1.0, (self.updates + 1) / max(settings.warmup, 1))
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = lr
        self._optimizer.step()
        self.weights.refresh()
        self.updates += 1
        return float(norm), lr

    def step(self, rollouts: Rollouts) -> StepReport:
        """Take one step; the gradients stay in ``weights.stored`` (clipped) until the next one."""
        loss, taught = self.backward(rollouts)
        norm, lr = self.update() if taught else (0.0, 0.0)
        return StepReport(float(rollouts.rewards.mean()), loss, norm, lr, taught)
