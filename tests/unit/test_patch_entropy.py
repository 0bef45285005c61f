"""The entropy coder: tokens, exact tables, and bits close to the entropy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thinwire.patch.entropy import (
    SCALE,
    TOKENS,
    bit_length,
    code_bytes,
    coding_tables,
    decode_bytes,
    entropy_bits,
    extra_bits,
    put_bits,
    scaled,
    take_bits,
    token_of,
    value_of,
)


@given(st.integers(0, (1 << 64) - 1))
def test_a_token_and_its_extra_bits_give_the_number_back(value):
    word = np.uint64(value)
    token, extra = token_of(word)
    assert 0 <= token < TOKENS
    assert extra == extra_bits(token)
    assert value_of(token, np.uint64(value & ((1 << extra) - 1))) == value
    assert bit_length(word) == value.bit_length()


def test_tokens_ascend_with_the_number():
    tokens = [token_of(np.uint64(value))[0] for value in range(1 << 12)]
    assert tokens == sorted(tokens)
    assert tokens[:17] == list(range(17))


@given(st.lists(st.tuples(st.integers(0, 61), st.integers(0, (1 << 61) - 1)), max_size=20))
def test_bits_are_read_as_they_were_put(fields):
    fields = [(count, value & ((1 << count) - 1)) for count, value in fields]
    out = np.zeros(8 * len(fields) + 1, dtype=np.uint8)
    at = 0
    for count, value in fields:
        at = put_bits(np.uint64(value), count, out, at)
    assert at == sum(count for count, _ in fields)
    at = 0
    for count, value in fields:
        assert take_bits(out, at, count) == value
        at += count


@given(st.dictionaries(st.integers(0, 255), st.integers(1, 1 << 40), min_size=1))
def test_shares_fill_the_scale_and_miss_no_token(found):
    counts = np.zeros(TOKENS, dtype=np.int64)
    counts[list(found)] = list(found.values())
    shares = scaled(counts)
    assert shares.sum() == SCALE
    assert set(np.flatnonzero(shares)) == set(found)


def test_shares_of_a_worked_case():
    counts = np.zeros(TOKENS, dtype=np.int64)
    counts[[0, 1, 2, 9]] = [1, 1, 1, 1_000_000]
    assert scaled(counts)[[0, 1, 2, 9]].tolist() == [1, 1, 1, SCALE - 3]
    counts[:] = 0
    counts[:3] = 1  # 1365 1/3 each: the remainder goes to the lowest token
    assert scaled(counts)[:3].tolist() == [1366, 1365, 1365]


def test_slots_and_starts_agree_with_the_shares():
    counts = np.zeros((2, TOKENS), dtype=np.int64)
    counts[0, [3, 200]] = [1, 3]
    counts[1, 255] = 5
    shares, starts, slots = coding_tables(counts)
    assert (shares[0, 3], starts[0, 3], shares[0, 200], starts[0, 200]) == (1024, 0, 3072, 1024)
    assert slots[0, [0, 1023, 1024, 4095]].tolist() == [3, 3, 200, 200]
    assert (slots[1] == 255).all()


def test_the_entropy_of_a_fair_and_of_a_sure_token():
    counts = np.zeros(TOKENS, dtype=np.int64)
    assert entropy_bits(counts) == 0
    counts[:2] = 50
    assert entropy_bits(counts) == pytest.approx(100)
    counts[1] = 0
    assert entropy_bits(counts) == 0


@given(st.binary(min_size=1, max_size=300))
def test_a_coded_row_comes_back(raw):
    row = np.frombuffer(raw, dtype=np.uint8)
    np.testing.assert_array_equal(decode_bytes(code_bytes(row), row.size), row)


def test_a_coded_row_takes_its_entropy():
    rng = np.random.default_rng(0)
    row = rng.geometric(0.3, 200_000).astype(np.uint8)
    entropy = entropy_bits(np.bincount(row, minlength=TOKENS))
    assert entropy < 8 * len(code_bytes(row)) < 1.005 * entropy + 1000


@given(st.data())
def test_a_harmed_row_is_read_or_refused(data):
    coded = bytearray(code_bytes(np.frombuffer(b"thin wire, thick weights" * 3, dtype=np.uint8)))
    for _ in range(data.draw(st.integers(1, 3))):
        coded[data.draw(st.integers(0, len(coded) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([0, 1, 2, 40]))
    try:
        row = decode_bytes(bytes(coded)[: len(coded) - cut], 72)
    except ValueError:
        return
    assert row.size == 72
