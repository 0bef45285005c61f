"""A byte-level decoder-only transformer that can be cut into stages.

Three parts follow each other and can be held apart: ``embed`` turns bytes into hidden states, ``blocks`` refine them,
and ``readout`` turns hidden states into logits over the next byte. Every block writes into a residual stream of the
same width, so the readout can be asked after any block; local learning rests on that.

The recipe is a modern one, because a plain one (LayerNorm, learned positions, AdamW) has hardly begun to learn after
the same minutes on a CPU: RMSNorm without gain before attention, MLP and readout; rotary positions; normalised queries
and keys; a squared-ReLU MLP; output projections and readout that start at zero, so that every block starts as the
identity and the first prediction is uniform. ``thinwire.muon`` holds the optimisers that belong to it.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that torch's documentation uses)

LIMITS = {"blocks": 1024, "width": 65536, "heads": 1024, "context": 1 << 20, "vocab": 1 << 20}


@dataclass(frozen=True)
class ByteTransformerConfig:
    """Sizes of a ByteTransformer: counts, ``context`` in bytes, ``rotary_base`` as the longest wavelength / 2 pi.

    Raises ValueError for a size outside its limits or a width that the heads do not divide into even parts.
    """

    blocks: int = 24
    width: int = 64
    heads: int = 4
    context: int = 128
    vocab: int = 256
    rotary_base: float = 10_000.0

    def __post_init__(self) -> None:
        """Check every size before anything is allocated."""
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if not 1 <= value <= limit:
                raise ValueError(f"{name} must be between 1 and {limit}, not {value}")
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width {self.width} must be a multiple of twice the {self.heads} heads: rotary positions turn pairs"
            )


def rotary_table(context: int, head_width: int, base: float) -> Tensor:
    """Return cosines and sines of the rotary angles (arXiv 2104.09864): float32, [2, context, head_width / 2]."""
    frequency = base ** -(torch.arange(0, head_width, 2, dtype=torch.float64) / head_width)
    angle = torch.outer(torch.arange(context, dtype=torch.float64), frequency)
    return torch.stack([angle.cos(), angle.sin()]).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Turn the halves of the last axis of ``x`` [..., length, head_width] by the angles of ``table``."""
    cosine, sine = table[:, : x.shape[-2]].unbind(0)
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=-1)


class Block(nn.Module):
    """Attention and MLP, each reading a normalised hidden state and adding to it; [batch, length, width] in and out.

    ``qkv`` has shape [3, width, width]: three matrices for the optimiser, one product for the forward pass.
    """

    def __init__(self, config: ByteTransformerConfig, rotary: Tensor, generator: torch.Generator | None) -> None:
        """Draw the inner matrices uniformly with standard deviation width ** -0.5 and start the output ones at zero."""
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.rotary: Tensor
        self.register_buffer("rotary", rotary, persistent=False)
        self.qkv = nn.Parameter(torch.empty(3, width, width))
        self.out = nn.Parameter(torch.zeros(width, width))
        self.up = nn.Parameter(torch.empty(4 * width, width))
        self.down = nn.Parameter(torch.zeros(width, 4 * width))
        bound = math.sqrt(3.0 / width)
        for matrix in (self.qkv, self.up):
            nn.init.uniform_(matrix, -bound, bound, generator=generator)

    def forward(self, hidden: Tensor) -> Tensor:
        """Refine ``hidden`` [batch, length, width]; position t reads positions up to t only."""
        batch, length, width = hidden.shape
        x = F.linear(F.rms_norm(hidden, (width,)), self.qkv.view(3 * width, width))
        x = x.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        qk = rotate(F.rms_norm(x[:2], (width // self.heads,)), self.rotary)
        seen = F.scaled_dot_product_attention(qk[0], qk[1], x[2], is_causal=True)
        hidden = hidden + F.linear(seen.transpose(1, 2).reshape(batch, length, width), self.out)
        x = F.relu(F.linear(F.rms_norm(hidden, (width,)), self.up)).square()
        return hidden + F.linear(x, self.down)


class Readout(nn.Module):
    """The shared decoder: RMSNorm without gain, then one matrix [vocab, width] that starts at zero."""

    def __init__(self, config: ByteTransformerConfig) -> None:
        """Start at zero: the first prediction is uniform whatever the hidden state is."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(config.vocab, config.width))

    def forward(self, hidden: Tensor) -> Tensor:
        """Return logits [..., vocab] for hidden states [..., width]."""
        return F.linear(F.rms_norm(hidden, (hidden.shape[-1],)), self.weight)


class ByteTransformer(nn.Module):
    """``readout(blocks(embed(ids)))``: the parts are public, so that stages can be cut anywhere between blocks.

    Embedding and readout are not tied: two stages would own one matrix.
    """

    def __init__(self, config: ByteTransformerConfig, *, generator: torch.Generator) -> None:
        """Build the parts; all initial weights come from ``generator``, in the order of the blocks."""
        super().__init__()
        self.config = config
        rotary = rotary_table(config.context, config.width // config.heads, config.rotary_base)
        self.embedding = nn.Parameter(torch.randn(config.vocab, config.width, generator=generator))
        self.blocks = nn.ModuleList(Block(config, rotary, generator) for _ in range(config.blocks))
        self.readout = Readout(config)

    def embed(self, ids: Tensor) -> Tensor:
        """Return hidden states [batch, length, width] for byte values ``ids`` (integers, [batch, length]).

        Raises ValueError when the length exceeds the context.
        """
        if ids.shape[-1] > self.config.context:
            raise ValueError(f"a sequence of {ids.shape[-1]} bytes does not fit the context of {self.config.context}")
        return F.embedding(ids, self.embedding)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits [batch, length, vocab] for the byte that follows each of ``ids`` [batch, length]."""
        hidden = self.embed(ids)
        for block in self.blocks:
            hidden = block(hidden)
        return self.readout(hidden)  # type: ignore[no-any-return]


def next_byte_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats of ``targets`` [...] under ``logits`` [..., vocab]."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def bits_per_byte(nats: float) -> float:
    """Turn a mean loss in nats a byte into bits a byte."""
    return nats / math.log(2.0)
