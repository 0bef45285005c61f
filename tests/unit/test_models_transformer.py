"""The byte transformer: causal, uniform at the start, separable into parts, refusing impossible sizes."""

import math

import pytest
import torch

from thinwire.models import (
    Block,
    ByteTransformer,
    ByteTransformerConfig,
    bits_per_byte,
    next_byte_loss,
    rotary_table,
    rotate,
)

SMALL = ByteTransformerConfig(blocks=3, width=16, heads=2, context=24)


def build(config=SMALL, seed=0, trained=True):
    model = ByteTransformer(config, generator=torch.Generator().manual_seed(seed))
    if trained:  # output projections and readout start at zero, which would hide most mistakes
        g = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=g), alpha=0.2)
    return model


def ids(rows=2, length=24, seed=3):
    return torch.randint(256, (rows, length), generator=torch.Generator().manual_seed(seed))


def test_first_prediction_is_uniform():
    loss = next_byte_loss(build(trained=False)(ids()[:, :-1]), ids()[:, 1:])
    assert bits_per_byte(loss.item()) == pytest.approx(8.0, abs=1e-5)


def test_every_block_starts_as_the_identity():
    model = build(trained=False)
    hidden = model.embed(ids())
    assert torch.equal(model.blocks[0](hidden), hidden)


def test_prediction_reads_the_past_only():
    model, early = build(), ids()
    late = early.clone()
    late[:, 11:] = (late[:, 11:] + 1) % 256
    a, b = model(early), model(late)
    torch.testing.assert_close(a[:, :11], b[:, :11])
    assert not torch.allclose(a[:, 11], b[:, 11])


def test_order_of_the_past_matters():
    model, one = build(), ids()
    other = one.clone()
    other[:, [2, 5]] = one[:, [5, 2]]
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1])


def test_rotation_keeps_lengths_and_depends_on_the_distance_only():
    table = rotary_table(32, 8, 10_000.0)
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(8, generator=g), torch.randn(8, generator=g)
    turned_q, turned_k = rotate(q.expand(32, 8), table), rotate(k.expand(32, 8), table)
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(32))
    torch.testing.assert_close(turned_q[9] @ turned_k[4], turned_q[25] @ turned_k[20])


def test_attention_equals_a_plain_softmax():
    block = build().blocks[0]
    hidden = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(5))
    x = hidden * (hidden.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    q, k, v = (torch.einsum("btw,ow->bto", x, m).view(2, 7, 2, 8).transpose(1, 2) for m in block.qkv)
    q, k = (t * (t.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt() for t in (q, k))
    q, k = (rotate(t, block.rotary) for t in (q, k))
    scores = (q @ k.mT / math.sqrt(8)).masked_fill(torch.ones(7, 7).triu(1).bool(), -math.inf)
    hidden = hidden + (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 7, 16) @ block.out.mT
    x = hidden * (hidden.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).rsqrt()
    expected = hidden + (x @ block.up.mT).clamp(min=0).square() @ block.down.mT
    got = block(torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(5)))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_parts_in_a_row_are_the_model():
    model = build()
    hidden = model.embed(ids())
    for block in model.blocks:
        assert isinstance(block, Block)
        hidden = block(hidden)
    assert torch.equal(model.readout(hidden), model(ids()))


def test_same_seed_gives_the_same_bits_and_another_does_not():
    one, same, other = build(seed=1), build(seed=1), build(seed=2)
    for a, b in zip(one.parameters(), same.parameters(), strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))
    assert not torch.equal(one.embedding, other.embedding)


@pytest.mark.parametrize(
    ("sizes", "named"),
    [({"width": 18, "heads": 4}, "width 18"), ({"blocks": 0}, "blocks"), ({"context": 1 << 21}, "context")],
)
def test_impossible_sizes_are_refused_by_name(sizes, named):
    with pytest.raises(ValueError, match=named):
        ByteTransformerConfig(**sizes)


def test_a_sequence_beyond_the_context_is_refused():
    with pytest.raises(ValueError, match="context of 24"):
        build()(ids(length=25))
