"""Real trainers in processes of their own, over gloo: the same bits everywhere, every byte counted, resumable."""

import pytest
import torch
from torch import nn

from thinwire.outer import DDP, DiLoCo, PulseLoCo, join
from thinwire.outer.exchange import ExchangeError
from thinwire.spawn import run_workers

WIDTH = 40


def spawn(target, folder, *args, workers=2):
    return run_workers(target, (f"file://{folder}/rendezvous", workers, *args), workers=workers, threads=1, timeout=120)


def build(name, model, exchange, inner_steps=3):
    parameters = dict(model.named_parameters())
    if name == "ddp":
        return DDP(parameters, exchange)
    return {"diloco": DiLoCo, "pulseloco": PulseLoCo}[name](parameters, exchange, inner_steps=inner_steps)


def fresh_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 7))


def advance(model, optimizer, strategy, generator):
    x = torch.randn(8, WIDTH, generator=generator)
    optimizer.zero_grad()
    (model(x) - x[:, :7]).square().mean().backward()
    strategy.average_gradients()
    optimizer.step()
    return strategy.finish_step()


def train(rank, exchange, name, steps, lr, inner_steps=3):
    model = fresh_model()
    strategy = build(name, model, exchange, inner_steps)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    generator = torch.Generator().manual_seed(100 + rank)
    outcomes = [advance(model, optimizer, strategy, generator) for _ in range(steps)]
    digest = strategy.check_agreement()
    return digest, [(o.sent, o.total, o.traffic.payload, o.traffic.link) for o in outcomes if o is not None]


def train_all(rank, rendezvous, size):
    with join(rank, size, rendezvous, interface="lo") as exchange:
        runs = {name: train(rank, exchange, name, 9, 1e-3) for name in ("ddp", "diloco", "pulseloco")}
        for name in ("diloco", "pulseloco"):
            runs[f"{name} where everything fires"] = train(rank, exchange, name, 1, 0.1, inner_steps=1)
        return runs


def train_interrupted(rank, rendezvous, size, name, steps, lr, folder):
    """Stop in the middle of a round, save on every rank, build everything anew, load and go on."""
    with join(rank, size, rendezvous, interface="lo") as exchange:
        model = fresh_model()
        strategy = build(name, model, exchange)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        generator = torch.Generator().manual_seed(100 + rank)
        for _ in range(steps // 2):
            advance(model, optimizer, strategy, generator)
        saved = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "strategy": strategy.state_dict(),
            "generator": generator.get_state(),
        }
        torch.save(saved, f"{folder}/{rank}.pt")
        model = fresh_model()
        strategy = build(name, model, exchange)
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
        state = torch.load(f"{folder}/{rank}.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        strategy.load_state_dict(state["strategy"])
        generator.set_state(state["generator"])
        for _ in range(steps - steps // 2):
            advance(model, optimizer, strategy, generator)
        residual = [r.abs().sum().item() for r in getattr(strategy, "residual", {}).values()]
        return strategy.check_agreement(), residual


def compare_means(exchange):
    """The dense mean in uneven shards against the mean of gathered values; payloads of unequal length."""
    x = torch.randn(1001, generator=torch.Generator().manual_seed(exchange.rank))
    dense = x.clone()
    traffic = exchange.mean_(dense)
    total = torch.zeros(1001)
    for data in exchange.gather(x.numpy().tobytes(), 4 * 1001)[0]:
        total += torch.frombuffer(bytearray(data), dtype=torch.float32)
    one = torch.tensor([float(exchange.rank)])
    exchange.mean_(one)
    sizes = [len(data) for data in exchange.gather(b"x" * exchange.rank * 5, 100)[0]]
    return torch.equal((total / exchange.size).view(torch.int32), dense.view(torch.int32)), traffic, one.item(), sizes


def refusals(rank, rendezvous, size):
    messages = []
    with join(rank, size, rendezvous, interface="lo") as exchange:
        for wrong in (
            lambda: DiLoCo({"w": torch.full((3,), float(rank))}, exchange, inner_steps=1),
            lambda: exchange.gather(b"x" * 11, 10),
        ):
            try:
                wrong()
            except ExchangeError as error:
                messages.append(str(error))
        return messages, compare_means(exchange)


TOTAL = sum(p.numel() for p in fresh_model().parameters())


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Every strategy with two trainers, the whole twice over."""
    return [spawn(train_all, tmp_path_factory.mktemp("trainers")) for _ in range(2)]


def test_a_second_run_gives_the_same_bits_and_bytes(runs):
    first, second = runs
    assert first == second


@pytest.mark.parametrize(("name", "exchanges"), [("ddp", 9), ("diloco", 3), ("pulseloco", 3)])
def test_trainers_hold_the_same_bits_and_count_every_byte(runs, name, exchanges):
    (digest, outcomes), (other_digest, other_outcomes) = (trainer[name] for trainer in runs[0])
    assert digest == other_digest
    assert len(outcomes) == exchanges
    if name == "pulseloco":
        assert outcomes != other_outcomes  # each trainer's own entries
        assert all(0 < sent < total == TOTAL for sent, total, *_ in outcomes)
        assert all(link == payload for *_, payload, link in outcomes)  # to one other trainer
    else:
        assert outcomes == other_outcomes == [(TOTAL, TOTAL, 4 * TOTAL, 4 * TOTAL)] * exchanges


def test_where_everything_fires_two_trainers_are_diloco(runs):
    dense, _ = runs[0][0]["diloco where everything fires"]
    sparse, outcomes = runs[0][0]["pulseloco where everything fires"]
    assert outcomes[0][:2] == (TOTAL, TOTAL)
    assert sparse == dense


def test_a_run_saved_on_every_rank_resumes_bit_for_bit(runs, tmp_path):
    resumed = spawn(train_interrupted, tmp_path, "pulseloco", 9, 1e-3, str(tmp_path))
    assert [trainer["pulseloco"][0] for trainer in runs[0]] == [digest for digest, _ in resumed]
    (_, residual), (_, other) = resumed
    assert residual != other  # what rank 0 alone could not have restored


def test_three_trainers_mean_in_rank_order_and_refuse_what_cannot_be(tmp_path):
    results = spawn(refusals, tmp_path, workers=3)
    for messages, (equal, traffic, one, sizes) in results:
        assert "all trainers must start alike" in messages[0]
        assert messages[1] == "trainer 0 announces a payload of 11 bytes; at most 10 are possible"
        assert equal
        assert one == 1.0
        assert sizes == [0, 5, 10]
        assert traffic.payload == 4004
    assert sum(traffic.link for _, (_, traffic, *_) in results) == 2 * 2 * 4004  # to two others, out and back
