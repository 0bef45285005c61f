"""The text task: a byte model that was trained on one text goes on on another, with R trainers.

Going on from trained weights at a small learning rate is where the gate has something to hold back. From scratch, at
the learning rates that a small model needs, every weight moves by more than a BF16 spacing in a round, all entries are
sent, and PULSELoCo is DiLoCo.
"""

from pathlib import Path

import torch

from thinwire.data import ByteText, batch, segments
from thinwire.models import ByteTransformer, ByteTransformerConfig, bits_per_byte, next_byte_loss
from thinwire.muon import Recipe, RecipeOptimiser
from thinwire.outer import join
from thinwire.patch import decode_anchor, encode_anchor
from thinwire.train.weights import MasterWeights
from thinwire_lab.experiments.outer_rounds_trainer import Config, Reading, Trainer, drive, named_generator
from thinwire_lab.text_places import text_folder

ANCHOR = "anchor.frame"
"""Name of the file that a base row keeps and a text row reads: the FP32 master weights as one anchor frame."""


class TextTrainer(Trainer):
    """Next-byte prediction with random batches of this trainer's own."""

    def __init__(self, config: Config, rank: int, seed: int, assets: Path, base: Path | None) -> None:
        """Build the model, from the anchor in folder ``base`` when there is one."""
        self.config = config
        text = ByteText(text_folder(assets, config.corpus))
        self.train = text.train
        self.held_out = segments(text.validation, config.context + 1, config.held_out)
        self.draws = named_generator(seed, f"batches of trainer {rank}")
        sizes = ByteTransformerConfig(config.blocks, config.width, config.heads, config.context)
        model = ByteTransformer(sizes, generator=named_generator(seed, "initial weights"))
        if base is not None:
            model.load_state_dict(decode_anchor((base / ANCHOR).read_bytes()))
        self.weights = MasterWeights(model)
        self.losses: list[float] = []
        if config.task == "base":
            stored = self.weights.stored
            matrices = [p for name, p in stored.items() if name.startswith("blocks.")]
            tables = [p for name, p in stored.items() if not name.startswith("blocks.")]
            self.optimizer: torch.optim.Optimizer | RecipeOptimiser = RecipeOptimiser(
                matrices, tables, recipe=Recipe(), steps=config.steps
            )
        else:
            self.optimizer = self.weights.optimizer(config.lr)

    def _loss(self, window: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.config.compute == "bfloat16"):
            logits = self.weights.model(window[:, :-1])
        return next_byte_loss(logits.float(), window[:, 1:])

    def backward(self, step: int) -> None:
        """Draw a batch and leave its gradients."""
        self.weights.zero_gradients()
        loss = self._loss(batch(self.train, self.draws, self.config.batch, self.config.context))
        loss.backward()  # type: ignore[no-untyped-call]
        self.losses.append(float(loss.detach()))
        self.weights.collect()

    def update(self, step: int) -> None:
        """Step the recipe (base) or AdamW (text)."""
        if isinstance(self.optimizer, RecipeOptimiser):
            self.optimizer.step(step)
        else:
            self.optimizer.step()
        self.weights.refresh()

    @torch.no_grad()
    def measure(self, round: int, *, validate: bool) -> list[Reading]:
        """Held-out bits per byte where ``validate``, and the mean training loss of the round."""
        readings: list[Reading] = []
        if self.losses:
            readings.append((round, "loss", sum(self.losses) / len(self.losses)))
            self.losses.clear()
        if validate:
            pieces = torch.split(self.held_out, 32)
            total = sum(float(self._loss(piece)) * len(piece) for piece in pieces)
            readings.append((round, "validation_bits_per_byte", bits_per_byte(total / len(self.held_out))))
        return readings


def train_text(
    rank: int, rendezvous: str, config: Config, seed: int, assets: Path, base: Path | None
) -> tuple[list[Reading], bytes]:
    """One trainer process: its readings, and at the end the shared FP32 weights as an anchor frame (task base)."""
    with join(rank, config.trainers, rendezvous, interface="lo") as exchange:
        trainer = TextTrainer(config, rank, seed, assets, base)
        readings = drive(config, trainer, exchange)
        if config.task != "base" or rank:
            return readings, b""
        return readings, encode_anchor({name: p.detach() for name, p in trainer.weights.stored.items()})
