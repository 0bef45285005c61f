"""Versions of weights in an experiment's hands: copies that last, chains with one anchor, digests as numbers."""

from thinwire.patch import State

ONE_ANCHOR = 10**9
"""Versions between anchors that no run reaches: one anchor, then patches."""


def copied(state: State) -> State:
    """Return a copy of ``state`` that outlasts its owner's next version."""
    return {name: tensor.clone() for name, tensor in state.items()}


def digest_number(digest: str) -> float:
    """Return the first 52 bits of a state digest, 13 hexadecimal digits, as a number that a double holds exactly."""
    return float(int(digest[:13], 16))
