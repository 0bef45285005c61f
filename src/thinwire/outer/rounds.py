"""How trainers keep one set of weights: at every step (DDP) or once a round (DiLoCo, PULSELoCo).

A round is H steps of each trainer's own optimizer and then one outer step that all trainers take alike. Three
strategies share one interface; a training step calls it twice:

    loss.backward()
    strategy.average_gradients()     # DDP averages here, the others do nothing
    optimizer.step()
    outcome = strategy.finish_step() # DiLoCo and PULSELoCo close a round at every H-th call

DDP sends every gradient. DiLoCo (arXiv 2311.08105) sends how far H steps went: the pseudo-gradient theta - w, dense.
The outer optimizer takes the mean over the trainers as if it were a gradient. PULSELoCo (Algorithm 2 of arXiv
2602.03839 v2) sends only the entries whose change the next forward pass would see, at full FP32 precision, and keeps
the rest in a residual that is added to the next round's change. Nothing is lost: what a trainer sends and what it keeps
add up to the change, bit for bit, because each entry goes one way or the other and is never split.

One trainer with H = 1, outer lr 1 and no momentum is plain training: theta - (theta - w) is w, bit for bit, wherever
the difference is exact in FP32 (w between theta / 2 and 2 theta, or theta zero, or |w| >= |theta|); a weight that loses
more than half of its magnitude in one step may come back with its last bits rounded.

The residual differs from trainer to trainer. A checkpoint therefore needs the state of every rank; a run that resumes
with the residual of rank 0 alone has silently lost the others' progress.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thinwire.gate import visible
from thinwire.outer import payload
from thinwire.outer.exchange import Exchange, Traffic
from thinwire.patch import state_digest

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Outcome:
    """What one exchange of one trainer amounted to: the exchange's 1-based number, entries sent of all, bytes."""

    round: int
    sent: int
    total: int
    traffic: Traffic

    @property
    def density(self) -> float:
        """Share of the entries that were sent; 0 where there are none."""
        return self.sent / max(self.total, 1)


def split(
    theta: torch.Tensor, update: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Divide ``update`` into what is sent and what is kept: positions (int64, flat), values and residual.

    Sent are the entries at which subtracting ``update`` from ``theta`` changes the value cast to ``dtype``. The
    residual has the shape of ``update``, zero where an entry is sent. Steps 3 to 5 of Algorithm 2, arXiv 2602.03839 v2.
    """
    fired = visible(theta, update, dtype)
    positions = fired.view(-1).nonzero().squeeze(1)
    return positions, update.reshape(-1)[positions], update.masked_fill(fired, 0.0)


def outer_step(
    theta: torch.Tensor, mean: torch.Tensor, velocity: torch.Tensor, *, lr: float, momentum: float, nesterov: bool
) -> None:
    """Take one step of SGD in place on ``theta`` with the mean pseudo-gradient; ``velocity`` is the momentum buffer.

    velocity <- momentum x velocity + mean; theta <- theta - lr x (mean + momentum x velocity) with Nesterov, theta - lr
    x velocity without. The same arithmetic, in the same order, as torch.optim.SGD. ``mean`` may be overwritten.
    """
    if momentum != 0.0:
        velocity.mul_(momentum).add_(mean)
        mean = mean.add_(velocity, alpha=momentum) if nesterov else velocity
    theta.add_(mean, alpha=-lr)


class Strategy(ABC):
    """One way to keep the weights of several trainers together."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], exchange: Exchange) -> None:
        """Take the FP32 master ``parameters`` by name; all trainers must hold the same ones, bit for bit.

        Parameters may live on any device; what is exchanged and what is kept between rounds is on the CPU.

        Raises ValueError for another dtype and ExchangeError when names, shapes or bits differ between trainers.
        """
        for name, parameter in parameters.items():
            if parameter.dtype != torch.float32 or not parameter.is_contiguous():
                raise ValueError(f"{name} is {parameter.dtype}; strategies move contiguous float32 master weights")
        if not parameters:
            raise ValueError("a strategy needs at least one parameter")
        self.exchange = exchange
        self.parameters = {name: parameters[name] for name in sorted(parameters)}
        self.sizes = [parameter.numel() for parameter in self.parameters.values()]
        self.round = 0
        self.check_agreement()

    @property
    def total(self) -> int:
        """Elements of all parameters."""
        return sum(self.sizes)

    def check_agreement(self) -> str:
        """Return the state digest of the parameters, equal on all trainers. Raises ExchangeError otherwise."""
        digest = state_digest({name: parameter.detach().cpu() for name, parameter in self.parameters.items()})
        self.exchange.agree("state digest of the weights", digest)
        return digest

    @abstractmethod
    def average_gradients(self) -> None:
        """Call after the backward pass, before clipping and the optimizer's step."""

    @abstractmethod
    def finish_step(self) -> Outcome | None:
        """Call after the optimizer's step; returns an Outcome when trainers exchanged something since the last one."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint of this rank needs beside parameters and optimizer; the tensors are not copied."""
        return {
            "strategy": type(self).__name__,
            "rank": self.exchange.rank,
            "trainers": self.exchange.size,
            "round": self.round,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the state that the same rank of as many trainers saved; parameters and optimizer are the caller's.

        Raises ValueError for the state of another strategy, rank or number of trainers, or of other tensors; nothing is
        taken then.
        """
        own = self.state_dict()
        for key in ("strategy", "rank", "trainers"):
            if state.get(key) != own[key]:
                raise ValueError(
                    f"a state of {key} {state.get(key)!r} cannot resume {key} {own[key]!r}: every rank saves and "
                    "loads its own state"
                )
        if state.keys() != own.keys():
            raise ValueError(f"the state lacks or adds {sorted(own.keys() ^ state.keys())}; load what was saved")
        buffers = {key: value for key, value in own.items() if isinstance(value, dict)}
        for key, tensors in buffers.items():
            _check_like(tensors, state[key], key)
        for key, tensors in buffers.items():
            for name, tensor in tensors.items():
                tensor.copy_(state[key][name])
        self._count(state)

    def _count(self, state: Mapping[str, Any]) -> None:
        self.round = int(state["round"])


class DDP(Strategy):
    """Data-parallel training: the mean of all FP32 gradients at every step. A round is one step."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], exchange: Exchange) -> None:
        """See Strategy."""
        super().__init__(parameters, exchange)
        self._pending: Traffic | None = None

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Replace every gradient by its mean over the trainers; a trainer without a gradient contributes zeros."""
        traffic = Traffic()
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            mean = parameter.grad.cpu()
            traffic += self.exchange.mean_(mean)
            parameter.grad.copy_(mean)  # nothing moves where the gradient itself is on the CPU
        self._pending = traffic

    def finish_step(self) -> Outcome:
        """Return what the step sent. Raises RuntimeError when the gradients were not averaged."""
        if self._pending is None:
            raise RuntimeError("DDP: average_gradients was not called before the optimizer's step")
        traffic, self._pending = self._pending, None
        self.round += 1
        return Outcome(self.round, self.total, self.total, traffic)


class _Rounds(Strategy):
    """Shared by DiLoCo and PULSELoCo: shared weights, inner counter, outer SGD and the hard reset."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        exchange: Exchange,
        *,
        inner_steps: int,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
    ) -> None:
        """Start a round at the parameters; ``inner_steps`` is H. Raises ValueError for a setting out of range."""
        if inner_steps < 1 or outer_lr <= 0.0 or not 0.0 <= momentum < 1.0:
            raise ValueError(
                f"inner_steps {inner_steps}, outer_lr {outer_lr}, momentum {momentum}: at least 1, above 0, in [0, 1)"
            )
        super().__init__(parameters, exchange)
        self.inner_steps = inner_steps
        self.outer_lr = outer_lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.inner = 0
        self.theta: Tensors = {name: p.detach().to("cpu", copy=True) for name, p in self.parameters.items()}
        self.velocity: Tensors = {name: torch.zeros_like(p) for name, p in self.theta.items()}

    def average_gradients(self) -> None:
        """Do nothing: inner steps are each trainer's own."""

    @torch.no_grad()
    def finish_step(self) -> Outcome | None:
        """Count an inner step; at the H-th exchange, take the outer step and reset the parameters to the result."""
        self.inner += 1
        if self.inner < self.inner_steps:
            return None
        self.inner = 0
        self.round += 1
        return self._exchange()

    @abstractmethod
    def _exchange(self) -> Outcome:
        """Average the changes of all trainers and :meth:`_apply` the mean to every parameter."""

    def _change(self, name: str) -> torch.Tensor:
        return self.theta[name] - self.parameters[name].cpu()

    def _apply(self, name: str, mean: torch.Tensor) -> None:
        theta = self.theta[name]
        outer_step(theta, mean, self.velocity[name], lr=self.outer_lr, momentum=self.momentum, nesterov=self.nesterov)
        self.parameters[name].copy_(theta)

    def state_dict(self) -> dict[str, Any]:
        """Add the inner counter, the shared weights and the outer momentum."""
        return super().state_dict() | {"inner": self.inner, "theta": self.theta, "velocity": self.velocity}

    def _count(self, state: Mapping[str, Any]) -> None:
        super()._count(state)
        self.inner = int(state["inner"])


class DiLoCo(_Rounds):
    """H inner steps, then the mean of the dense FP32 pseudo-gradients (arXiv 2311.08105)."""

    def _exchange(self) -> Outcome:
        traffic = Traffic()
        for name in self.parameters:
            change = self._change(name)
            traffic += self.exchange.mean_(change)
            self._apply(name, change)
        return Outcome(self.round, self.total, self.total, traffic)


class PulseLoCo(_Rounds):
    """DiLoCo that sends only compute-visible entries and keeps the rest in a residual.

    Algorithm 2 of arXiv 2602.03839 v2, with the gate evaluated in BF16 on the trainer's own change and residual. An
    entry that is not sent counts as zero in the mean; its momentum still moves it.
    """

    def __init__(self, parameters: Mapping[str, torch.Tensor], exchange: Exchange, **settings: Any) -> None:
        """Start with a residual of zero; ``settings`` are those of DiLoCo."""
        super().__init__(parameters, exchange, **settings)
        self.residual: Tensors = {name: torch.zeros_like(p) for name, p in self.theta.items()}

    def _exchange(self) -> Outcome:
        entries: list[payload.Entries] = []
        for name, theta in self.theta.items():
            update = self._change(name).add_(self.residual[name])
            positions, values, self.residual[name] = split(theta, update)
            entries.append((positions, values))
        sent = sum(len(positions) for positions, _ in entries)
        gathered, traffic = self.exchange.gather(payload.encode(entries, self.sizes), payload.limit(self.sizes))
        del entries
        received = [payload.decode(data, self.sizes) for data in gathered]  # all checked before a weight moves
        for name, *parts in zip(self.parameters, *received, strict=True):
            mean = torch.zeros_like(self.theta[name])
            for positions, values in parts:
                mean.view(-1).index_add_(0, positions, values)
            self._apply(name, mean.div_(self.exchange.size))
        return Outcome(self.round, sent, self.total, traffic)

    def state_dict(self) -> dict[str, Any]:
        """Add this rank's residual."""
        return super().state_dict() | {"residual": self.residual}


def _check_like(into: Tensors, source: Mapping[str, torch.Tensor], what: str) -> None:
    if source.keys() != into.keys():
        raise ValueError(f"{what}: {sorted(source.keys() ^ into.keys())[:3]} are on one side only; load what was saved")
    for name, tensor in into.items():
        if source[name].shape != tensor.shape or source[name].dtype != tensor.dtype:
            raise ValueError(
                f"{what} of {name}: {tuple(source[name].shape)} {source[name].dtype} cannot be taken for "
                f"{tuple(tensor.shape)} {tensor.dtype}"
            )
