"""An entropy coder for small alphabets: tokens, frequency tables, and a range variant of asymmetric numeral systems.

A number is coded as a token and extra bits. Numbers below 16 are their own token; above, a token says the bit length
and the next two bits, and the rest follows as it is, since within a quarter of an octave all values are about equally
likely. Tokens are coded by rANS (Duda, arXiv 1311.2540, section 3.3): an integer state grows by -log2(p) bits for a
token of probability p, so a cost of a fraction of a bit is paid as such. Probabilities are the exact counts of the
tokens, scaled to 4096 by integer arithmetic alone: two machines never disagree on a table.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from thinwire.patch.kernel import kernel

Counts = npt.NDArray[np.int64]
"""How often each of the 256 tokens occurs, shape (256,), or a row of such tables, shape (tables, 256)."""

TOKENS = 256
SCALE_BITS = 12
SCALE = 1 << SCALE_BITS
LOWEST = 1 << 16
"""Least state between two tokens; words have 16 bits, so a state stays below 2^32."""
STATE_BYTES = 4
LANES = 4
"""States of a coded byte row, which take turns: a processor works on several at once."""


@kernel
def bit_length(value: Any) -> int:
    """Return the bits of ``value`` (uint64), 0 for 0."""
    size = 0
    for step in (32, 16, 8, 4, 2, 1):
        if value >> np.uint64(step) != 0:
            value >>= np.uint64(step)
            size += step
    return size + (1 if value != 0 else 0)


@kernel
def token_of(value: Any) -> tuple[Any, Any]:
    """Return the token of ``value`` (uint64) and the number of its extra bits, which are its lowest."""
    if value < np.uint64(16):
        return np.int64(value), 0
    size = bit_length(value)
    return 16 + 4 * (size - 5) + np.int64((value >> np.uint64(size - 3)) & np.uint64(3)), size - 3


@kernel
def extra_bits(token: int) -> int:
    """Return the number of extra bits that follow ``token``."""
    return 0 if token < 16 else 2 + ((token - 16) >> 2)


@kernel
def value_of(token: int, extra: Any) -> Any:
    """Return the number (uint64) of ``token`` and its ``extra`` bits (uint64)."""
    if token < 16:
        return np.uint64(token)
    return (np.uint64(4 + ((token - 16) & 3)) << np.uint64(2 + ((token - 16) >> 2))) | extra


@kernel
def put_bits(value: Any, count: int, out: Any, at: int) -> int:
    """Set the lowest ``count`` bits of ``value`` (uint64) in ``out``, zero there, from bit ``at``; return the bit
    after.
    """
    while count > 0:
        room = min(8 - (at & 7), count)
        out[at >> 3] |= np.uint8((value & np.uint64((1 << room) - 1)) << np.uint64(at & 7))
        value >>= np.uint64(room)
        at += room
        count -= room
    return at


@kernel
def take_bits(data: Any, at: Any, count: int) -> Any:
    """Return ``count`` bits of ``data`` from bit ``at`` as uint64; the caller has checked that they are there."""
    value = np.uint64(0)
    taken = 0
    while taken < count:
        room = min(8 - (at & 7), count - taken)
        piece = (np.uint64(data[at >> 3]) >> np.uint64(at & 7)) & np.uint64((1 << room) - 1)
        value |= piece << np.uint64(taken)
        at += room
        taken += room
    return value


@kernel
def push(state: Any, start: int, share: int, words: Any, at: int) -> tuple[Any, int]:
    """Put a token on ``state`` (uint64); return the state and the place before the words written downwards from
    ``at``.
    """
    if state >= np.uint64(share) << np.uint64(32 - SCALE_BITS):
        words[at] = state & np.uint64(0xFFFF)
        at -= 1
        state >>= np.uint64(16)
    whole = state // np.uint64(share)
    return (whole << np.uint64(SCALE_BITS)) + (state - whole * np.uint64(share)) + np.uint64(start), at


def scaled(counts: Counts) -> Counts:
    """Return ``counts`` (256,) scaled to shares that sum to 4096, at least one for each token that occurs.

    Floors first, then one each to the largest remainders (the lower token first among equals); what the ones of rare
    tokens took too many is taken back from the largest share, one at a time.
    """
    total = int(counts.sum())
    if total == 0:
        return np.zeros(TOKENS, dtype=np.int64)
    exact = [int(count) * SCALE for count in counts]
    shares = [max(1, part // total) if part else 0 for part in exact]
    missing = SCALE - sum(shares)
    if missing > 0:
        order = sorted((i for i in range(TOKENS) if exact[i] >= total), key=lambda i: (-(exact[i] % total), i))
        for i in order[:missing]:
            shares[i] += 1
    for _ in range(-missing):
        shares[shares.index(max(shares))] -= 1
    return np.array(shares, dtype=np.int64)


def coding_tables(counts: Counts) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], npt.NDArray[np.uint8]]:
    """Return shares and starts, shape (tables, 256), and the token of each of the 4096 slots, shape (tables, 4096)."""
    shares = np.array([scaled(row) for row in counts], dtype=np.uint32).reshape(-1, TOKENS)
    starts = np.cumsum(shares, axis=1, dtype=np.uint32) - shares
    slots = np.zeros((len(shares), SCALE), dtype=np.uint8)
    for table, row in enumerate(shares):
        slots[table, : int(row.sum())] = np.repeat(np.arange(TOKENS, dtype=np.uint8), row)
    return shares, starts, slots


def entropy_bits(counts: Counts) -> float:
    """Return the order-0 entropy of all tokens of ``counts`` (256,) together, in bits."""
    used = counts[counts > 0]
    return float(used.sum() * np.log2(used.sum()) - (used * np.log2(used)).sum()) if used.size else 0.0


@kernel
def _push_row(row: Any, shares: Any, starts: Any, states: Any, words: Any) -> Any:
    """Code ``row`` from its end into ``words`` from their end; return the place before the first word used."""
    at = words.size - 1
    for i in range(row.size - 1, -1, -1):
        token = row[i]
        states[i & 3], at = push(states[i & 3], starts[token], shares[token], words, at)
    return at


@kernel
def _pull_row(words: Any, states: Any, shares: Any, starts: Any, slots: Any, row: Any) -> Any:
    """Restore ``row``; return the number of words used, -1 where words are missing."""
    at = 0
    for i in range(row.size):
        state = states[i & 3]
        slot = np.int64(state & np.uint64(SCALE - 1))
        token = slots[slot]
        row[i] = token
        state = np.uint64(shares[token]) * (state >> np.uint64(SCALE_BITS)) + np.uint64(slot - np.int64(starts[token]))
        if state < np.uint64(LOWEST):
            if at >= words.size:
                return -1
            state = (state << np.uint64(16)) | np.uint64(words[at])
            at += 1
        states[i & 3] = state
    return at


def code_bytes(row: npt.NDArray[np.uint8]) -> bytes:
    """Return ``row`` (at least one byte) coded by its own shares: the tokens and shares, four states, and the words."""
    counts = np.bincount(row, minlength=TOKENS).astype(np.int64)
    shares, starts, _ = coding_tables(counts[None])
    used = np.flatnonzero(shares[0])
    table = np.zeros(used.size, dtype=[("token", "u1"), ("share", "<u2")])
    table["token"], table["share"] = used, shares[0, used]
    states = np.full(LANES, LOWEST, dtype=np.uint64)
    words = np.empty(row.size * SCALE_BITS // 16 + 2 * LANES, dtype="<u2")
    before = _push_row(row, shares[0], starts[0], states, words)
    head = bytes([used.size - 1]) + table.tobytes() + states.astype("<u4").tobytes()
    return head + words[before + 1 :].tobytes()


def decode_bytes(data: Any, size: int) -> npt.NDArray[np.uint8]:
    """Return the ``size`` bytes that ``code_bytes`` coded; raises ValueError for anything that it would not write."""
    view = memoryview(data)
    count = view[0] + 1 if view else 0
    start = 1 + 3 * count
    if count == 0 or len(view) < start + 4 * LANES or (len(view) - start) % 2:
        raise ValueError("a coded row is cut")
    table = np.frombuffer(view[1:start], dtype=[("token", "u1"), ("share", "<u2")])
    shares = np.zeros(TOKENS, dtype=np.uint32)
    shares[table["token"]] = table["share"]
    rising = bool((np.diff(table["token"].astype(np.int64)) > 0).all())
    if not rising or not table["share"].all() or int(shares.sum()) != SCALE:
        raise ValueError("the shares of a coded row do not fill the scale, or a token stands twice")
    starts = np.cumsum(shares, dtype=np.uint32) - shares
    slots = np.repeat(np.arange(TOKENS, dtype=np.uint8), shares)
    states = np.frombuffer(view[start : start + 4 * LANES], dtype="<u4").astype(np.uint64)
    words = np.frombuffer(view[start + 4 * LANES :], dtype="<u2")
    row = np.empty(size, dtype=np.uint8)
    if bool((states < LOWEST).any()) or _pull_row(words, states, shares, starts, slots, row) != words.size:
        raise ValueError("a coded row has words too few or too many")
    if bool((states != LOWEST).any()):
        raise ValueError("a coded row does not end where it began")
    return row
