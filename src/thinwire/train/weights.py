"""What the optimizer steps and what the forward pass reads: two ways to store weights that compute in BF16.

*FP32 master*: the optimizer steps FP32 weights; each forward pass reads their BF16 cast. Updates too small to be seen
at once accumulate in the master (definition A.2 of arXiv 2602.03839 v2).

*Pure BF16*: the weights themselves, their gradients and the optimizer's state are BF16. An update below half the
spacing of BF16 values is lost. The published sparsity was measured on runs of this kind (models loaded in bfloat16
with no FP32 copy).

Either way the model that computes (``Weights.model``) holds the BF16 values: in FP32 arithmetic where the processor
has no fast BF16 (an FP32 product of BF16 values is what a BF16 matrix unit computes before it rounds its result), or
as a BF16 model on an accelerator, which in pure BF16 is the stored weights themselves. The values that the next
forward pass reads are ``published_state()``; these are what a rollout worker needs, and what sparsity is measured on.
"""

from abc import ABC, abstractmethod

import torch
from torch import nn

from thinwire.patch import State


class Weights(ABC):
    """A model's weights in one of the two storages.

    ``model`` computes; its parameters are FP32 or BF16 and hold BF16 values, rounded from what it held when it was
    passed in. ``stored`` maps each parameter's name to what the optimizer steps; a tied parameter appears once, under
    its first name. Change ``stored`` in place (an optimizer's step, an outer step), then call ``refresh``.
    Raises ValueError when ``model`` has parameters of another dtype.
    """

    stored: dict[str, nn.Parameter]

    def __init__(self, model: nn.Module) -> None:
        """Take ``model`` over as the one that computes."""
        for name, parameter in model.named_parameters():
            if parameter.dtype not in {torch.float32, torch.bfloat16}:
                raise ValueError(f"{name} is {parameter.dtype}; load the model in torch.float32 or torch.bfloat16")
        self.model = model
        self._shadow = dict(model.named_parameters())

    @abstractmethod
    def refresh(self) -> None:
        """Make the model compute with the BF16 values of ``stored``."""

    @abstractmethod
    def collect(self) -> None:
        """Move the gradients of the last backward pass from the model to ``stored``; a parameter without one gets
        zeros."""

    @abstractmethod
    def _published(self) -> State: ...

    @abstractmethod
    def optimizer(
        self, lr: float, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> torch.optim.AdamW:
        """Return torch's AdamW over ``stored``, its state in the storage's dtype."""

    def published_state(self) -> State:
        """Return what the next forward pass reads: each parameter in BF16 and each saved buffer in its own dtype.

        The tensors are on the CPU, a tied one appears once under its first name (as in a safetensors checkpoint), and
        on a CPU they are the live ones: clone what must outlast the next ``refresh``.
        """
        state = self._published()
        names = {name for name, _ in self.model.named_buffers()}
        saved = self.model.state_dict()
        return state | {name: saved[name].detach().cpu() for name in saved if name in names}

    def zero_gradients(self) -> None:
        """Forget the gradients of the model and of ``stored``."""
        for parameters in (self._shadow, self.stored):
            for parameter in parameters.values():
                parameter.grad = None


class MasterWeights(Weights):
    """FP32 weights and FP32 AdamW state; the forward pass reads their BF16 cast."""

    def __init__(self, model: nn.Module) -> None:
        """Copy the model's FP32 values into the master, unrounded, and round those the model computes with."""
        super().__init__(model)
        self.stored = {name: nn.Parameter(shadow.detach().float().clone()) for name, shadow in self._shadow.items()}
        self._cast = {name: torch.empty_like(shadow, dtype=torch.bfloat16) for name, shadow in self._shadow.items()}
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Round ``stored`` to BF16 and let the model compute with that."""
        for name, shadow in self._shadow.items():
            shadow.copy_(self._cast[name].copy_(self.stored[name]))

    def collect(self) -> None:
        """Hand the model's FP32 gradients over (the cast's derivative is taken as one)."""
        for name, shadow in self._shadow.items():
            stored = self.stored[name]
            stored.grad = torch.zeros_like(stored) if shadow.grad is None else shadow.grad.float()
            shadow.grad = None

    def _published(self) -> State:
        return {name: cast.cpu() for name, cast in self._cast.items()}

    def optimizer(
        self, lr: float, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> torch.optim.AdamW:
        """Return AdamW with FP32 state; fused, which is the same arithmetic in one pass over memory."""
        parameters = list(self.stored.values())
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=True)


class Bfloat16Weights(Weights):
    """BF16 weights, gradients and AdamW state, every elementary operation of the optimizer rounded to BF16."""

    def __init__(self, model: nn.Module) -> None:
        """Round the model's values to BF16; the parameters of a BF16 model are stepped themselves."""
        super().__init__(model)
        self.stored = {
            name: shadow if shadow.dtype == torch.bfloat16 else nn.Parameter(shadow.detach().bfloat16())
            for name, shadow in self._shadow.items()
        }
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Let the model compute with ``stored``."""
        for name, shadow in self._shadow.items():
            if shadow is not self.stored[name]:
                shadow.copy_(self.stored[name])

    def collect(self) -> None:
        """Round the model's gradients to BF16 and hand them over."""
        for name, shadow in self._shadow.items():
            stored = self.stored[name]
            gradient = torch.zeros_like(stored) if shadow.grad is None else shadow.grad.bfloat16()
            shadow.grad = None
            stored.grad = gradient

    def _published(self) -> State:
        return {name: stored.detach().cpu() for name, stored in self.stored.items()}

    def optimizer(
        self, lr: float, *, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> torch.optim.AdamW:
        """Return AdamW with BF16 state; foreach, torch's default, which rounds after each elementary operation."""
        parameters = list(self.stored.values())
        return torch.optim.AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, foreach=True)


STORAGES: dict[str, type[Weights]] = {"fp32_master": MasterWeights, "bf16": Bfloat16Weights}


@torch.no_grad()
def read_state(model: nn.Module, state: State) -> None:
    """Make ``model`` compute with a published state: what a rollout worker does after each pull.

    Values are copied into the model's own dtype (BF16 fits into FP32 exactly). Raises ValueError when a name is
    missing or unknown, or a shape differs.
    """
    targets: State = dict(model.named_parameters())
    buffers = dict(model.named_buffers())
    targets |= {name: buffers[name] for name in model.state_dict() if name in buffers}
    if targets.keys() != state.keys():
        missing, unknown = sorted(targets.keys() - state.keys()), sorted(state.keys() - targets.keys())
        raise ValueError(f"the state does not fit the model: missing {missing[:3]}, unknown {unknown[:3]}")
    for name, target in targets.items():
        if target.shape != state[name].shape:
            raise ValueError(
                f"{name} is {tuple(state[name].shape)} in the state and {tuple(target.shape)} in the model"
            )
        target.copy_(state[name])
