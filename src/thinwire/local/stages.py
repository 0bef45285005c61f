"""Stages: consecutive blocks that train on their own loss, cut off from each other.

A stage receives hidden states as plain numbers, refines them with its blocks, and asks the shared readout for its own
prediction of the next byte. The gradient of that loss crosses the blocks of the stage and stops: the horizon is the
stage. What it hands to the next stage is detached, so a later loss can never reach an earlier block.

Two options lengthen what a loss reaches. With ``overlap`` a stage takes its input from before the last blocks of the
stage before it, runs them once more, and its gradient crosses them too (they are trained by both losses; LoCo, arXiv
2008.01342). With ``private`` every stage but the last puts blocks of its own between its hidden states and the shared
readout, so that what it hands on need not be a prediction yet.

This is our reading of readout-gradient consensus: decoupled greedy learning (arXiv 1901.08164) whose auxiliary heads
are one shared readout. Only a lay summary of the method is public.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 (the name that torch's documentation uses)

from thinwire.local.consensus import Consensus
from thinwire.models import Block, ByteTransformer, ByteTransformerConfig, Readout, next_byte_loss, rotary_table
from thinwire.muon import Recipe, RecipeOptimiser

Batches = Callable[[int], Tensor]
"""Batch of a 0-based step: integers [batch, length + 1]; the same step gives the same bytes. Picklable."""


@dataclass(frozen=True)
class TrainingPlan:
    """What all schedules share, so that arms differ in the schedule alone.

    ``steps`` is the length of the learning-rate schedule, ``seed`` draws the initial weights, ``stages`` also counts
    the replicas of ``global_ddp``, ``threads`` is the count of one process. Blocks: ``sizes`` are the stages' lengths
    (empty: as even as they can be), ``overlap`` the blocks before a stage that its gradient also crosses, ``private``
    the blocks of its own that every stage but the last puts before the readout. Readout: ``consensus`` weighs the
    stages' gradients, ``readout_lr`` is its learning rate (None: the recipe's ``adam_lr``), ``staleness`` (processes
    only) bounds the updates that a stage's copy may lack, except in the first ``fresh_steps`` steps, where it lacks
    none. ``similarity`` weighs ``similarity_loss`` beside the cross-entropy of every stage but the last.
    ``microbatches`` are those of ``global_1f1b``. ``compiled`` compiles every block with ``torch.compile`` (a C++
    compiler must be there; each process pays for it once), ``autocast`` runs products in BF16 and keeps weights and
    residual stream in FP32, where the processor has instructions for it; both change the last bits. Raises ValueError
    for numbers outside their limits.
    """

    model: ByteTransformerConfig
    steps: int
    seed: int
    stages: int = 4
    threads: int = 1
    staleness: int = 4
    recipe: Recipe = field(default_factory=Recipe)
    sizes: tuple[int, ...] = ()
    overlap: int = 0
    private: int = 0
    consensus: Consensus = "mean"
    readout_lr: float | None = None
    similarity: float = 0.0
    fresh_steps: int = 0
    microbatches: int = 2
    compiled: bool = False
    autocast: bool = False

    def __post_init__(self) -> None:
        """Check the numbers before processes start."""
        if not 1 <= self.stages <= self.model.blocks:
            raise ValueError(f"{self.model.blocks} blocks make 1 to {self.model.blocks} stages, not {self.stages}")
        if self.steps < 1 or self.threads < 1 or self.microbatches < 1:
            raise ValueError(
                f"steps ({self.steps}), threads ({self.threads}) and microbatches ({self.microbatches}) start at 1"
            )
        if not 0 <= self.staleness <= 4096:
            raise ValueError(f"staleness must be between 0 and 4096 readout updates, not {self.staleness}")
        if self.fresh_steps < 0 or self.similarity < 0 or not 0 <= self.private <= 64:
            raise ValueError(
                f"fresh_steps ({self.fresh_steps}) and similarity ({self.similarity}) are 0 or more, private "
                f"({self.private}) is 0 to 64"
            )
        if self.sizes and (
            len(self.sizes) != self.stages or min(self.sizes) < 1 or sum(self.sizes) != self.model.blocks
        ):
            raise ValueError(
                f"sizes {list(self.sizes)} must be {self.stages} lengths of 1 or more that sum to {self.model.blocks}"
            )
        if self.autocast and not bf16_products():
            raise ValueError("autocast needs a processor with BF16 products (AVX-512 BF16 or AMX); this one has none")
        shortest = min(len(span) for span in self.spans)
        if not 0 <= self.overlap <= shortest:
            raise ValueError(
                f"overlap must be between 0 and the shortest stage's {shortest} blocks, not {self.overlap}"
            )

    @property
    def spans(self) -> list[range]:
        """Blocks of each stage."""
        if not self.sizes:
            return cut(self.model.blocks, self.stages)
        bounds = [0, *itertools.accumulate(self.sizes)]
        return [range(a, b) for a, b in itertools.pairwise(bounds)]

    def lag(self, step: int) -> int:
        """Readout updates that a stage's copy may lack at ``step``."""
        return 0 if step < self.fresh_steps else self.staleness

    def initial_model(self) -> ByteTransformer:
        """Return the model at step 0; every process that asks gets the same bits."""
        return self.initial_stages()[0]

    def precision(self) -> torch.autocast:
        """Return the context that forward passes run in."""
        return torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast)

    def initial_stages(self) -> tuple[ByteTransformer, list["Stage"]]:
        """Return the model at step 0 and its stages, which share its parameters; private blocks are drawn after it."""
        generator = torch.Generator().manual_seed(self.seed)
        model = ByteTransformer(self.model, generator=generator)
        rotary = rotary_table(self.model.context, self.model.width // self.model.heads, self.model.rotary_base)
        stages = []
        for rank in range(self.stages):
            count = 0 if rank == self.stages - 1 else self.private
            own = [Block(self.model, rotary, generator) for _ in range(count)]
            stages.append(Stage(model, self, rank, own))
            if self.compiled:
                for block in (*stages[-1].blocks, *own):
                    block.compile()
        return model, stages

    def optimiser(
        self,
        matrices: Iterable[nn.Parameter],
        *,
        embedding: nn.Parameter | None = None,
        readout: nn.Parameter | None = None,
    ) -> "PlanOptimiser":
        """Return the optimiser of these parameters under the plan's recipe and schedule."""
        return PlanOptimiser(self, matrices, embedding, readout)


class PlanOptimiser:
    """The recipe's optimisers, with a learning rate of its own for the readout; any part may be absent."""

    def __init__(
        self,
        plan: TrainingPlan,
        matrices: Iterable[nn.Parameter],
        embedding: nn.Parameter | None,
        readout: nn.Parameter | None,
    ) -> None:
        """Allocate the moments."""
        tables = [] if embedding is None else [embedding]
        self.parts = [RecipeOptimiser(matrices, tables, recipe=plan.recipe, steps=plan.steps)]
        if readout is not None:
            rate = plan.recipe.adam_lr if plan.readout_lr is None else plan.readout_lr
            recipe = replace(plan.recipe, adam_lr=rate)
            self.parts.append(RecipeOptimiser([], [readout], recipe=recipe, steps=plan.steps))

    def step(self, step: int) -> None:
        """Apply the gradients of 0-based ``step`` and clear them."""
        for part in self.parts:
            part.step(step)

    def state(self) -> dict[str, Tensor]:
        """Return the moments by name; they are the optimiser's own, no copies."""
        state: dict[str, Tensor] = {}
        for place, part in enumerate(self.parts):
            state |= {f"{place}.muon.{i}": buffer for i, buffer in enumerate(part.muon.buffers)}
            for i, (mean, square) in enumerate(part.adam.moments):
                state |= {f"{place}.mean.{i}": mean, f"{place}.square.{i}": square}
        return state

    @torch.no_grad()
    def load(self, state: dict[str, Tensor], done: int) -> None:
        """Take over the moments after ``done`` steps."""
        for name, value in self.state().items():
            value.copy_(state[name])
        for part in self.parts:
            part.adam.count = done


def bf16_products() -> bool:
    """Whether this processor multiplies BF16 numbers in hardware; elsewhere they are a hundred times slower."""
    return any("bf16" in name and has for name, has in torch.cpu.get_capabilities().items())


def cut(blocks: int, stages: int) -> list[range]:
    """Split ``blocks`` into consecutive ranges of equal length; a remainder lengthens the last stages by one each."""
    bounds = [blocks * k // stages for k in range(stages + 1)]
    return [range(a, b) for a, b in itertools.pairwise(bounds)]


class Stage(nn.Module):
    """Stage ``rank`` of ``model``, with its embedding when it is the first; shares the parameters, copies none.

    ``lead`` are the blocks of the stage before that it runs once more, ``blocks`` its own, ``private`` those before
    the readout that no other stage sees.
    """

    def __init__(self, model: ByteTransformer, plan: TrainingPlan, rank: int, private: Sequence[Block] = ()) -> None:
        """Take the blocks of the plan's stage ``rank``."""
        super().__init__()
        self.span = plan.spans[rank]
        self.last = rank == plan.stages - 1
        first = self.span.start
        self.lead = nn.ModuleList(model.blocks[i] for i in range(first - plan.overlap if rank else first, first))
        self.blocks = nn.ModuleList(model.blocks[i] for i in self.span)
        self.private = nn.ModuleList(private)
        self.embedding = model.embedding if rank == 0 else None
        self.similarity = 0.0 if self.last else plan.similarity
        self.precision = plan.precision
        self._handed = len(self.lead) + len(self.blocks) - (0 if self.last else plan.overlap)

    def forward(self, inputs: Tensor, ship: Callable[[Tensor], None] | None = None) -> tuple[Tensor, Tensor]:
        """Return hidden states [batch, length, width] after the last block, and those for the next stage, detached.

        ``inputs`` are byte values for the first stage, hidden states for the others. ``ship`` gets the detached ones as
        soon as they are there.
        """
        hidden = inputs if self.embedding is None else F.embedding(inputs, self.embedding)
        handed = hidden
        for place, block in enumerate(itertools.chain(self.lead, self.blocks), start=1):
            if place - 1 == self._handed:  # an overlap of the whole stage hands on what it received
                handed = self._hand(hidden, ship)
            hidden = block(hidden)
        if self._handed == len(self.lead) + len(self.blocks):
            handed = self._hand(hidden, ship)
        return hidden, handed

    @staticmethod
    def _hand(hidden: Tensor, ship: Callable[[Tensor], None] | None) -> Tensor:
        detached = hidden.detach()
        if ship is not None:
            ship(detached)
        return detached

    def part_of_model(self) -> dict[str, Tensor]:
        """Return the stage's own blocks and embedding under the names of a saved state, ``model.blocks.7.qkv``."""
        part = {}
        for name, value in self.blocks.state_dict().items():
            position, rest = name.split(".", 1)
            part[f"model.blocks.{self.span.start + int(position)}.{rest}"] = value
        if self.embedding is not None:
            part["model.embedding"] = self.embedding.detach()
        return part

    def optimiser(self, plan: TrainingPlan, readout: nn.Parameter | None = None) -> PlanOptimiser:
        """Return the optimiser of the stage's own parameters, and of the ``readout`` when it owns one."""
        own = [*self.blocks.parameters(), *self.private.parameters()]
        return plan.optimiser(own, embedding=self.embedding, readout=readout)


def similarity_loss(hidden: Tensor, targets: Tensor) -> Tensor:
    """Return the similarity-matching loss (arXiv 1901.06656) of ``hidden`` [batch, length, width].

    Within each sequence: the mean squared difference between the cosine similarities of the positions' hidden states,
    centred over the width, and 1 where two positions have the same target byte, else 0.
    """
    centred = F.normalize(hidden - hidden.mean(-1, keepdim=True), dim=-1)
    same = (targets.unsqueeze(-1) == targets.unsqueeze(-2)).to(hidden.dtype)
    return (centred @ centred.mT - same).square().mean()


def local_backward(
    stage: Stage,
    readout: Readout,
    inputs: Tensor,
    targets: Tensor,
    *,
    ship: Callable[[Tensor], None] | None = None,
    refresh: Callable[[], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run one stage forward and its own loss backward; return what it hands on and its cross-entropy in nats.

    Gradients are added to the stage's parameters and to ``readout.weight``. ``inputs`` must be detached. ``ship`` gets
    the detached hidden states before the loss is computed, so that the next stage can start: no backward locking.
    ``refresh`` is called when the readout is about to be asked, the last moment at which it may change. Raises
    ValueError when ``inputs`` carries a graph.
    """
    if inputs.requires_grad:
        raise ValueError("a stage's inputs must be detached: its gradient would cross into the stage before it")
    with stage.precision():
        hidden, handed = stage(inputs, ship)
        if refresh is not None:
            refresh()
        asked = hidden
        for block in stage.private:
            asked = block(asked)
        loss = next_byte_loss(readout(asked), targets)
    whole = loss if stage.similarity == 0 else loss + stage.similarity * similarity_loss(hidden, targets)
    whole.backward()  # type: ignore[no-untyped-call]
    return handed, loss.detach()
