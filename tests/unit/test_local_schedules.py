"""Degenerate cases and gradients of the schedules in one process."""

from dataclasses import dataclass, replace

import pytest
import torch

from thinwire.local import TrainingPlan, open_schedule
from thinwire.local.consensus import combine, shares
from thinwire.local.schedule import RGCSync
from thinwire.local.stages import Stage, cut, local_backward, similarity_loss
from thinwire.models import ByteTransformerConfig, next_byte_loss

MODEL = ByteTransformerConfig(blocks=4, width=16, heads=2, context=16)
PLAN = TrainingPlan(model=MODEL, stages=4, steps=8, seed=5)


@dataclass(frozen=True)
class RandomBatches:
    """Batches of a generator's bytes."""

    seed: int = 11

    def __call__(self, step):
        g = torch.Generator().manual_seed(1000 * self.seed + step)
        return torch.randint(256, (2, MODEL.context + 1), generator=g)


def bits(model):
    return {name: value.contiguous().view(torch.int32) for name, value in model.state_dict().items()}


def same_bits(one, other):
    a, b = bits(one), bits(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def trained(name, plan=PLAN, steps=8):
    with open_schedule(name, plan, RandomBatches()) as run:
        losses = run.advance(steps)
        return run.model(), losses


@pytest.mark.parametrize("name", ["rgc_sync", "local_independent"])
def test_one_stage_is_global_backpropagation_bit_for_bit(name):
    plan = replace(PLAN, stages=1)
    model, losses = trained(name, plan)
    expected, expected_losses = trained("global_backprop", plan)
    assert losses == expected_losses
    assert same_bits(model, expected)


def test_synchronous_gradients_are_those_of_the_summed_detached_losses():
    run = RGCSync(PLAN, RandomBatches())
    run.advance(4)  # away from the zeros of the start
    batch = RandomBatches()(4)
    inputs, targets = batch[:, :-1], batch[:, 1:]
    run.gradients(inputs, targets)
    got = {name: p.grad.clone() for name, p in run.whole.named_parameters()}
    run.whole.zero_grad()
    hidden, total = run.whole.embed(inputs), torch.zeros(())
    for span in cut(4, 4):
        for i in span:
            hidden = run.whole.blocks[i](hidden)
        total = total + next_byte_loss(run.whole.readout(hidden), targets)
        hidden = hidden.detach()
    total.backward()
    run.whole.readout.weight.grad /= 4
    for name, parameter in run.whole.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-5, atol=1e-8, msg=name)


def test_a_later_loss_never_reaches_an_earlier_stage():
    model = RGCSync(PLAN, RandomBatches())
    model.advance(3)
    hidden = RandomBatches()(0)[:, :-1]
    targets = RandomBatches()(0)[:, 1:]
    for k, stage in enumerate(model.stages):
        model.whole.zero_grad()
        hidden, _ = local_backward(stage, model.whole.readout, hidden, targets)
        for j, other in enumerate(model.stages):
            reached = [p.grad is not None and bool(p.grad.any()) for p in other.parameters()]
            assert all(reached) if j == k else not any(reached), (k, j)


def test_inputs_with_a_graph_are_refused():
    whole = PLAN.initial_model()
    stage = Stage(whole, PLAN, 1)
    hidden = whole.embed(RandomBatches()(0)[:, :-1])
    with pytest.raises(ValueError, match="detached"):
        local_backward(stage, whole.readout, hidden, RandomBatches()(0)[:, 1:])


def test_independent_stages_share_no_readout():
    with open_schedule("local_independent", PLAN, RandomBatches()) as run:
        run.advance(3)
        weights = [readout.weight for readout in (*run.readouts, run.whole.readout)]
    assert all(not torch.equal(weights[0], other) for other in weights[1:])
    assert run.model().readout.weight is weights[-1]


def test_schedules_differ_in_what_they_learn():
    models = [trained(name)[0] for name in ("global_backprop", "local_independent", "rgc_sync")]
    assert not same_bits(models[0], models[1])
    assert not same_bits(models[1], models[2])


def test_same_plan_gives_the_same_bits():
    assert same_bits(trained("rgc_sync")[0], trained("rgc_sync")[0])


def test_consensus_is_the_mean_and_of_one_the_gradient_itself():
    g = torch.Generator().manual_seed(0)
    notes = [torch.randn(5, 3, generator=g) for _ in range(4)]
    torch.testing.assert_close(combine(notes), torch.stack(notes).mean(0))
    assert torch.equal(combine(notes[:1]), notes[0])
    with pytest.raises(ValueError, match="at least one"):
        combine([])
    with pytest.raises(ValueError, match="shape"):
        combine([notes[0], notes[1].mT])


def test_plans_beyond_their_limits_are_refused():
    with pytest.raises(ValueError, match="1 to 4 stages"):
        replace(PLAN, stages=5)
    for changes, message in (
        ({"staleness": -1}, "staleness"),
        ({"sizes": (1, 3), "stages": 3}, "must be 3 lengths"),
        ({"sizes": (1, 1), "stages": 2}, "sum to 4"),
        ({"overlap": 2}, "shortest stage's 1 blocks"),
        ({"microbatches": 0}, "start at 1"),
        ({"private": -1}, "0 to 64"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(PLAN, **changes)
    with pytest.raises(ValueError, match="do not fit"):
        trained("rgc_sync", steps=9)
    with pytest.raises(ValueError, match="no schedule 'backprop'"):
        open_schedule("backprop", PLAN, RandomBatches())


def test_consensus_by_depth_and_of_the_final_stage():
    g = torch.Generator().manual_seed(0)
    notes = [torch.randn(5, 3, generator=g) for _ in range(3)]
    assert shares("depth", 3) == pytest.approx([1 / 6, 2 / 6, 3 / 6])
    torch.testing.assert_close(combine(notes, "depth"), (notes[0] + 2 * notes[1] + 3 * notes[2]) / 6)
    assert torch.equal(combine(notes, "final"), notes[2])
    for consensus in ("mean", "depth", "final"):
        assert sum(shares(consensus, 7)) == pytest.approx(1)
    with pytest.raises(ValueError, match="no consensus 'median'"):
        shares("median", 3)


def test_similarity_loss_is_zero_where_equal_targets_have_equal_states_and_others_are_orthogonal():
    targets = torch.tensor([[0, 1, 0, 1]])
    states = torch.tensor([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, -1.0]])
    assert similarity_loss(states[targets], targets).item() == pytest.approx(0, abs=1e-6)
    assert similarity_loss(states[targets], torch.zeros_like(targets)).item() == pytest.approx(0.5, abs=1e-6)


def test_overlapping_gradients_are_those_of_the_summed_losses():
    """With an overlap of 2, the second of two stages of 2 also trains the first, from the embedding on."""
    plan = replace(PLAN, stages=2, overlap=2)
    run = RGCSync(plan, RandomBatches())
    run.advance(4)
    batch = RandomBatches()(4)
    inputs, targets = batch[:, :-1], batch[:, 1:]
    run.gradients(inputs, targets)
    got = {name: p.grad.clone() for name, p in run.whole.named_parameters()}
    run.whole.zero_grad()
    embedded = run.whole.embed(inputs)
    first = run.whole.blocks[1](run.whole.blocks[0](embedded))
    second = run.whole.blocks[1](run.whole.blocks[0](embedded.detach()))
    for block in run.whole.blocks[2:]:
        second = block(second)
    total = sum(next_byte_loss(run.whole.readout(hidden), targets) for hidden in (first, second))
    total.backward()
    run.whole.readout.weight.grad /= 2
    for name, parameter in run.whole.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad, rtol=1e-5, atol=1e-8, msg=name)


def test_private_blocks_train_and_are_no_part_of_the_model():
    plan = replace(PLAN, stages=2, private=1)
    run = RGCSync(plan, RandomBatches())
    before = [p.detach().clone() for stage in run.stages for p in stage.private.parameters()]
    run.advance(4)
    after = [p for stage in run.stages for p in stage.private.parameters()]
    assert len(after) == 4
    assert all(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert run.model().state_dict().keys() == plan.initial_model().state_dict().keys()
    assert same_bits(plan.initial_model(), replace(plan, private=0).initial_stages()[0])


def test_a_rate_of_its_own_moves_the_readout_alone():
    models = [trained("global_backprop", replace(PLAN, readout_lr=lr), steps=1)[0] for lr in (None, 0.01, 0.05)]
    assert same_bits(models[0], models[1])
    moved = models[2].readout.weight / models[0].readout.weight
    torch.testing.assert_close(moved, torch.full_like(moved, 5.0))
    assert torch.equal(models[0].embedding, models[2].embedding)
