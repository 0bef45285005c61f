"""Rounds of one trainer, and the pure parts: gate, split, outer step. Equality means equal bits."""

import copy

import pytest
import torch
from torch import nn

from thinwire.outer import DDP, DiLoCo, Exchange, PulseLoCo, outer_step, split


def bits(tensor):
    return tensor.detach().contiguous().view(torch.int32)


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(bits(left[name]), bits(right[name])) for name in left)


def named(model):
    return dict(model.named_parameters())


def steady_model(seed=0):
    """Weights between 0.5 and 1 in magnitude, so that no step of lr 1e-3 halves one."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            size = 0.5 + 0.5 * torch.rand(parameter.shape, generator=generator)
            parameter.copy_(size * torch.randint(0, 2, parameter.shape, generator=generator).mul(2).sub(1))
    return model


def train(model, steps, strategy=None, seed=1, lr=1e-3):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    outcomes = []
    for _ in range(steps):
        x = torch.randn(8, 6, generator=generator)
        optimizer.zero_grad()
        (model(x) - x[:, :3]).square().mean().backward()
        if strategy is not None:
            strategy.average_gradients()
        optimizer.step()
        if strategy is not None:
            outcomes.append(strategy.finish_step())
    return outcomes


@pytest.mark.parametrize("strategy", ["ddp", "diloco"])
def test_one_trainer_with_one_inner_step_is_plain_training(strategy):
    plain, shared = steady_model(), steady_model()
    train(plain, 50)
    if strategy == "ddp":
        held = DDP(named(shared), Exchange())
    else:
        held = DiLoCo(named(shared), Exchange(), inner_steps=1, outer_lr=1.0, momentum=0.0)
    outcomes = train(shared, 50, held)
    assert equal(named(plain), named(shared))
    assert [outcome.round for outcome in outcomes] == list(range(1, 51))
    total = sum(p.numel() for p in plain.parameters())
    assert all((o.sent, o.total, o.traffic.payload, o.traffic.link) == (total, total, 4 * total, 0) for o in outcomes)


def test_a_round_ends_at_every_h_th_step_and_resets_to_the_shared_weights():
    model = steady_model()
    held = DiLoCo(named(model), Exchange(), inner_steps=4)
    outcomes = train(model, 8, held)
    assert [o is not None for o in outcomes] == [False, False, False, True] * 2
    assert equal(named(model), held.theta)


def test_the_outer_step_is_torch_sgd():
    generator = torch.Generator().manual_seed(3)
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True)):
        start = torch.randn(1000, generator=generator)
        reference = nn.Parameter(start.clone())
        optimizer = torch.optim.SGD([reference], lr=0.7, momentum=momentum, nesterov=nesterov)
        theta, velocity = start.clone(), torch.zeros(1000)
        for _ in range(5):
            gradient = torch.randn(1000, generator=generator)
            reference.grad = gradient.clone()
            optimizer.step()
            outer_step(theta, gradient.clone(), velocity, lr=0.7, momentum=momentum, nesterov=nesterov)
        assert torch.equal(bits(theta), bits(reference))


def test_at_two_an_update_of_0_003_is_invisible_and_0_005_is_seen():
    theta = torch.tensor([2.0, 2.0, 2.0, 2.0])
    positions, values, residual = split(theta, torch.tensor([0.003, 0.005, -0.005, -0.009]))
    assert positions.tolist() == [1, 3]  # upwards the spacing at 2 is 2 ** -6, downwards half of it
    assert torch.equal(values, torch.tensor([0.005, -0.009]))
    assert torch.equal(residual, torch.tensor([0.003, 0.0, -0.005, 0.0]))


def test_sent_and_kept_add_up_to_the_update_bit_for_bit():
    generator = torch.Generator().manual_seed(5)
    theta = torch.randn(64, 500, generator=generator) * torch.logspace(-6, 0, 500)
    update = torch.randn(64, 500, generator=generator) * 1e-4
    positions, values, residual = split(theta, update)
    assert 0 < len(positions) < theta.numel()
    assert (residual.view(-1)[positions] == 0).all()
    whole = residual.view(-1).clone()
    whole[positions] = values
    assert torch.equal(bits(whole), bits(update.view(-1)))


def test_small_changes_accumulate_until_they_are_sent():
    parameter = nn.Parameter(torch.tensor([1.0]))
    held = PulseLoCo({"w": parameter}, Exchange(), inner_steps=1, outer_lr=1.0, momentum=0.0)
    sent = []
    for _ in range(600):
        with torch.no_grad():
            parameter.sub_(1e-5)
        sent.append(held.finish_step().sent)
        assert parameter.item() == held.theta["w"].item()
    first, second = (step for step, count in enumerate(sent, start=1) if count)
    assert 190 <= first <= 200  # the first boundary is half a spacing (2 ** -9) below 1, the second a whole one further
    assert 580 <= second <= 592
    assert parameter.item() - held.residual["w"].item() == pytest.approx(1.0 - 600e-5, abs=1e-5)


def test_when_nothing_fires_no_entry_is_sent_and_no_weight_moves():
    model = steady_model()
    before = copy.deepcopy(named(model))
    held = PulseLoCo(named(model), Exchange(), inner_steps=2)
    outcomes = train(model, 2, held, lr=1e-7)
    assert outcomes[-1].sent == 0
    assert outcomes[-1].density == 0.0
    assert outcomes[-1].traffic.payload < 200
    assert equal(before, named(model))
    assert all(residual.any() for residual in held.residual.values())


def test_when_everything_fires_pulseloco_is_diloco():
    left, right = steady_model(), steady_model()
    dense = DiLoCo(named(left), Exchange(), inner_steps=4)
    sparse = PulseLoCo(named(right), Exchange(), inner_steps=4)
    train(left, 4, dense, lr=0.05)
    (*_, outcome) = train(right, 4, sparse, lr=0.05)
    assert outcome.sent == outcome.total
    assert equal(named(left), named(right))
    assert equal(dense.velocity, sparse.velocity)
    assert not any(residual.any() for residual in sparse.residual.values())


def test_weights_that_are_not_float32_are_refused_by_name():
    with pytest.raises(ValueError, match=r"layer is torch\.bfloat16"):
        DiLoCo({"layer": torch.zeros(3, dtype=torch.bfloat16)}, Exchange(), inner_steps=1)


@pytest.mark.parametrize(
    "setting", [{"inner_steps": 0}, {"inner_steps": 1, "momentum": 1.0}, {"inner_steps": 1, "outer_lr": 0.0}]
)
def test_settings_out_of_range_are_refused(setting):
    with pytest.raises(ValueError, match="inner_steps"):
        PulseLoCo(named(steady_model()), Exchange(), **setting)


def test_ddp_refuses_a_step_whose_gradients_were_not_averaged():
    held = DDP(named(steady_model()), Exchange())
    with pytest.raises(RuntimeError, match="average_gradients was not called"):
        held.finish_step()


def test_a_state_resumes_only_what_saved_it():
    model = steady_model()
    state = DiLoCo(named(model), Exchange(), inner_steps=2).state_dict()
    sparse = PulseLoCo(named(model), Exchange(), inner_steps=2)
    with pytest.raises(ValueError, match="strategy 'DiLoCo' cannot resume strategy 'PulseLoCo'"):
        sparse.load_state_dict(state)
    with pytest.raises(ValueError, match="every rank saves and loads its own state"):
        sparse.load_state_dict(sparse.state_dict() | {"rank": 1})
    with pytest.raises(ValueError, match="residual of"):
        sparse.load_state_dict(sparse.state_dict() | {"residual": {n: torch.zeros(1) for n in sparse.residual}})
    before = sparse.round, {name: theta.clone() for name, theta in sparse.theta.items()}
    broken = sparse.state_dict() | {"round": 7, "velocity": {}}
    broken["theta"] = {name: theta + 1 for name, theta in sparse.theta.items()}
    with pytest.raises(ValueError, match="velocity"):
        sparse.load_state_dict(broken)
    assert sparse.round == before[0]
    assert all(torch.equal(sparse.theta[name], theta) for name, theta in before[1].items())
    with pytest.raises(ValueError, match=r"lacks or adds \['residual'\]"):
        sparse.load_state_dict({key: value for key, value in sparse.state_dict().items() if key != "residual"})
