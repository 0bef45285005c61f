"""The two storages: what the optimizer steps, what is read, what is published."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from thinwire.train.weights import STORAGES, Bfloat16Weights, MasterWeights, Weights, read_state


def model(seed: int = 0, *, tied: bool = True) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=19,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).eval()


def same_bits(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int16), b[k].view(torch.int16)) for k in a)


def train(weights: Weights, lr: float, steps: int) -> None:
    optimizer = weights.optimizer(lr)
    tokens = torch.arange(19)[None]
    for _ in range(steps):
        weights.zero_gradients()
        weights.model(tokens, labels=tokens).loss.backward()
        weights.collect()
        optimizer.step()
        weights.refresh()


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("tied", [True, False])
def test_the_published_state_is_what_the_model_computes_with(storage: str, tied: bool) -> None:
    weights = STORAGES[storage](model(tied=tied))
    train(weights, 1e-3, 3)
    state = weights.published_state()
    parameters = dict(weights.model.named_parameters())
    assert state.keys() == parameters.keys()
    assert ("lm_head.weight" in state) is not tied
    for name, value in state.items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value.float(), parameters[name])
    reader = model(seed=1, tied=tied)
    read_state(reader, state)
    tokens = torch.arange(19)[None]
    assert torch.equal(reader(tokens).logits, weights.model(tokens).logits)


def test_a_master_accumulates_what_pure_bf16_loses() -> None:
    master, pure = MasterWeights(model()), Bfloat16Weights(model())
    start = {name: value.clone() for name, value in master.published_state().items()}
    assert same_bits(start, pure.published_state())
    for weights in (master, pure):
        for _ in range(64):
            with torch.no_grad():
                for parameter in weights.stored.values():
                    parameter.mul_(1.0 + 2.0**-12)
            weights.refresh()
    assert same_bits(start, pure.published_state())
    assert not same_bits(start, master.published_state())


def test_optimizer_state_has_the_storages_dtype() -> None:
    for storage, dtype in ((MasterWeights, torch.float32), (Bfloat16Weights, torch.bfloat16)):
        weights = storage(model())
        optimizer = weights.optimizer(1e-3)
        weights.model(torch.arange(5)[None]).logits.sum().backward()
        weights.collect()
        assert all(p.grad is not None and p.grad.dtype == dtype for p in weights.stored.values())
        assert all(p.grad is None for p in weights.model.parameters())
        optimizer.step()
        moments = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
        assert {moment.dtype for moment in moments} == {dtype}


def test_the_master_steps_as_plain_fp32_training_does_from_the_cast_gradient() -> None:
    weights = MasterWeights(model())
    plain = {name: torch.nn.Parameter(p.detach().clone()) for name, p in weights.stored.items()}
    weights.model(torch.arange(5)[None], labels=torch.arange(5)[None]).loss.backward()
    gradients = {name: p.grad.clone() for name, p in weights.model.named_parameters() if p.grad is not None}
    weights.collect()
    weights.optimizer(1e-3).step()
    for name, parameter in plain.items():
        parameter.grad = gradients[name]
    torch.optim.AdamW(plain.values(), lr=1e-3, weight_decay=0.0, fused=True).step()
    assert all(torch.equal(plain[name], weights.stored[name]) for name in plain)


def test_a_parameter_without_gradient_gets_zeros() -> None:
    for storage in STORAGES.values():
        weights = storage(model())
        weights.collect()
        assert all(p.grad is not None and not p.grad.any() for p in weights.stored.values())


def test_saved_buffers_are_published_and_others_are_not() -> None:
    net = torch.nn.BatchNorm1d(3)
    net.register_buffer("scratch", torch.ones(2), persistent=False)
    state = MasterWeights(net).published_state()
    assert set(state) == {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}
    assert state["num_batches_tracked"].dtype == torch.int64
    read_state(torch.nn.BatchNorm1d(3), state)


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"load the model in torch\.float32 or torch\.bfloat16"):
        MasterWeights(model().double())
    state = MasterWeights(model()).published_state()
    name = next(iter(state))
    with pytest.raises(ValueError, match=f"missing .*{name}"):
        read_state(model(), {k: v for k, v in state.items() if k != name})
    with pytest.raises(ValueError, match=r"unknown .*other"):
        read_state(model(), state | {"other": state[name]})
    with pytest.raises(ValueError, match=f"{name} is"):
        read_state(model(), state | {name: state[name][:1]})


def test_a_bf16_model_is_stepped_itself_or_has_an_fp32_master() -> None:
    net = model().bfloat16()
    pure = Bfloat16Weights(net)
    assert all(p is pure.stored[name] for name, p in net.named_parameters())
    start = {name: value.clone() for name, value in pure.published_state().items()}
    train(pure, 1e-2, 2)
    assert not same_bits(start, pure.published_state())
    master = MasterWeights(model().bfloat16())
    assert all(p.dtype == torch.float32 for p in master.stored.values())
    train(master, 1e-2, 2)
    state = master.published_state()
    assert all(torch.equal(state[name], p) for name, p in master.model.named_parameters())
