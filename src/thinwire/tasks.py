"""Small tasks whose answers can be checked: arithmetic in a few-shot completion format.

A base model of 135 million parameters answers no question in a chat, but it continues a list of sums:

    3 + 4 = 7
    9 - 2 = 7
    6 * 5 = 30
    8 + 1 = 9
    7 + 5 =

The first lines, the shots, are drawn once, so that every prompt of a run shares one prefix and its attention states
need computing once. The answer is what stands before the next newline. A mix of kinds keeps room for the reward:
single digits are learned soon, two-digit sums and products are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


@dataclass(frozen=True)
class Question:
    """One sum: ``prompt`` is the line up to and with the equals sign, ``answer`` the number that must follow."""

    kind: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Kind:
    """A kind of sum: the operation and the inclusive range of both operands."""

    operation: str
    low: int
    high: int

    def draw(self, name: str, generator: torch.Generator) -> Question:
        """Draw both operands uniformly and return the question."""
        a, b = torch.randint(self.low, self.high + 1, (2,), generator=generator).tolist()
        value = {"add": a + b, "subtract": a - b, "multiply": a * b}[self.operation]
        return Question(name, f"{a} {SIGNS[self.operation]} {b} =", str(value))


KINDS: Mapping[str, Kind] = {
    "add_0_9": Kind("add", 0, 9),
    "add_10_99": Kind("add", 10, 99),
    "multiply_0_9": Kind("multiply", 0, 9),
    "subtract_0_9": Kind("subtract", 0, 9),
}


class Arithmetic:
    """A mix of sums with one fixed few-shot prefix, ``prefix``.

    ``shares`` gives each kind (a name in ``KINDS``) its positive weight; ``shots`` is the number of solved lines in
    the prefix, which go through the kinds in turn and are drawn from ``generator`` without repetition. Raises
    ValueError for an unknown kind or a share that is not positive.
    """

    def __init__(self, shares: Mapping[str, float], *, shots: int, generator: torch.Generator) -> None:
        """Draw the shots."""
        for name, share in shares.items():
            if name not in KINDS:
                raise ValueError(f"unknown kind of sum {name!r}; choose from {', '.join(KINDS)}")
            if not share > 0:
                raise ValueError(f"the share of {name} is {share}; it must be positive")
        if not shares:
            raise ValueError(f"no kind of sum is named; choose from {', '.join(KINDS)}")
        self.names = tuple(shares)
        self.weights = torch.tensor(list(shares.values()), dtype=torch.float64)
        lines: list[str] = []
        while len(lines) < shots:
            name = self.names[len(lines) % len(self.names)]
            question = KINDS[name].draw(name, generator)
            line = f"{question.prompt} {question.answer}\n"
            if line not in lines:
                lines.append(line)
        self.prefix = "".join(lines)

    def draw(self, count: int, generator: torch.Generator) -> list[Question]:
        """Draw ``count`` questions, kinds by their shares, operands uniformly."""
        kinds = torch.multinomial(self.weights, count, replacement=True, generator=generator).tolist()
        return [KINDS[self.names[k]].draw(self.names[k], generator) for k in kinds]


def verify(completion: str, answer: str) -> float:
    """Return the reward of a completion: 1.0 when the text before its first newline is ``answer``, else 0.0.

    Spaces around the answer do not matter; anything else does (``"07"`` or ``"7."`` is not ``"7"``).
    """
    return float(completion.split("\n", 1)[0].strip() == answer)
