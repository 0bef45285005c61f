"""Muon and the schedule: orthogonal steps, one result however the matrices are stacked, refusals."""

import pytest
import torch
from torch import nn

from thinwire.muon import Adam, Muon, Recipe, RecipeOptimiser, orthogonalise, schedule


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(5, 16, 16), (3, 16, 64), (3, 64, 16)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    values = torch.linalg.svdvals(orthogonalise(draw(*shape)))
    assert values.min() > 0.3  # a nearly singular direction of a square matrix is lifted more slowly
    assert values.max() < 1.25
    assert values.median() > 0.65


def test_orthogonalised_matrix_keeps_its_singular_vectors():
    matrix = draw(1, 12, 12)
    u, _, vh = torch.linalg.svd(matrix)
    middle = (u.mT @ orthogonalise(matrix) @ vh.mT)[0]
    torch.testing.assert_close(middle, torch.diag(middle.diag()), atol=1e-4, rtol=0)


def test_zero_stays_zero():
    assert not orthogonalise(torch.zeros(2, 8, 8)).any()


def test_stacked_and_single_matrices_move_alike():
    shapes = [(3, 8, 8), (8, 8), (32, 8), (8, 32)]
    together = [nn.Parameter(draw(*shape, seed=i)) for i, shape in enumerate(shapes)]
    alone = [nn.Parameter(p.detach().clone()) for p in together]
    optimiser, singles = Muon(together), [Muon([p]) for p in alone]
    for step in range(3):
        for i, (a, b) in enumerate(zip(together, alone, strict=True)):
            a.grad = draw(*shapes[i], seed=100 * step + i)
            b.grad = a.grad.clone()
        optimiser.step(0.1)
        for single in singles:
            single.step(0.1)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b)


def test_scale_of_the_gradient_does_not_matter():
    one, other = (nn.Parameter(draw(6, 6)) for _ in range(2))
    one.grad, other.grad = draw(6, 6, seed=1), 0.25 * draw(6, 6, seed=1)
    Muon([one]).step(0.1)
    Muon([other]).step(0.1)
    torch.testing.assert_close(one, other)


def test_gradients_survive_a_step_of_muon_itself():
    parameter = nn.Parameter(draw(4, 8))
    parameter.grad = draw(4, 8, seed=1)
    Muon([parameter]).step(0.1)
    assert torch.equal(parameter.grad, draw(4, 8, seed=1))


def test_schedule_rises_holds_and_falls():
    factors = [schedule(step, 400, 50) for step in range(400)]
    assert factors[0] == pytest.approx(1 / 51)
    assert factors[49] < 1.0
    assert set(factors[50:201]) == {1.0}
    assert factors[300] == pytest.approx(0.5)
    assert factors[399] == pytest.approx(1 / 200)


def test_schedule_of_a_short_run_still_reaches_its_height():
    assert max(schedule(step, 6, 50) for step in range(6)) == 1.0


def test_adam_has_the_bits_of_torch():
    ours = [nn.Parameter(draw(9, 4)), nn.Parameter(draw(5, seed=1))]
    theirs = [nn.Parameter(p.detach().clone()) for p in ours]
    adam = Adam(ours, betas=(0.9, 0.95))
    reference = torch.optim.AdamW(theirs, lr=1.0, betas=(0.9, 0.95), weight_decay=0.0, foreach=False)
    for step, lr in enumerate([0.001, 0.01, 0.01, 0.003]):
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            a.grad = draw(*a.shape, seed=50 + 10 * step + i)
            b.grad = a.grad.clone()
        adam.step(lr)
        reference.param_groups[0]["lr"] = lr
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))


def test_recipe_steps_every_parameter_and_clears_gradients():
    matrix, table = nn.Parameter(draw(4, 4)), nn.Parameter(draw(9, 4))
    before = [matrix.detach().clone(), table.detach().clone()]
    optimiser = RecipeOptimiser([matrix], [table], recipe=Recipe(), steps=10)
    (table @ matrix).square().sum().backward()
    optimiser.step(0)
    for parameter, old in zip((matrix, table), before, strict=True):
        assert not torch.equal(parameter, old)
        assert parameter.grad is None


def test_refusals():
    with pytest.raises(ValueError, match="is none"):
        Muon([nn.Parameter(torch.zeros(3))])
    with pytest.raises(ValueError, match="no gradient"):
        Muon([nn.Parameter(torch.zeros(3, 3))]).step(0.1)
