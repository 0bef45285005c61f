"""Tasks whose answers can be checked: sums in a few-shot completion format, and written data sets.

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

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

SIGNS = {"add": "+", "subtract": "-", "multiply": "*"}


@dataclass(frozen=True)
class Question:
    """``prompt`` is a sum's line up to and with the equals sign, or a whole chat; ``answer`` is what must come out."""

    kind: str
    prompt: str
    answer: str


class Task(Protocol):
    """What a policy is trained on: a common prefix of all prompts, where answers stop, and what they earn."""

    prefix: str
    stops: tuple[str, ...]

    def draw(self, count: int, generator: torch.Generator) -> list[Question]:
        """Draw ``count`` questions."""
        ...

    def reward(self, completion: str, question: Question) -> float:
        """Return what the answer ``completion`` earns, from 0 to 1."""
        ...


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

    ``shares`` gives each kind (a name in ``KINDS``) its positive weight. The prefix has ``shots`` solved lines, drawn
    from ``generator`` without repetition, whose kinds follow the shares as closely as whole lines can. Raises
    ValueError for an unknown kind or a share that is not positive.
    """

    stops: tuple[str, ...] = ("\n",)

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
        given = torch.zeros(len(self.names), dtype=torch.float64)
        while len(lines) < shots:
            owed = self.weights / self.weights.sum() * (len(lines) + 1) - given
            kind = int(owed.argmax())
            question = KINDS[self.names[kind]].draw(self.names[kind], generator)
            line = f"{question.prompt} {question.answer}\n"
            if line not in lines:
                lines.append(line)
                given[kind] += 1
        self.prefix = "".join(lines)

    def draw(self, count: int, generator: torch.Generator) -> list[Question]:
        """Draw ``count`` questions, kinds by their shares, operands uniformly."""
        kinds = torch.multinomial(self.weights, count, replacement=True, generator=generator).tolist()
        return [KINDS[self.names[k]].draw(self.names[k], generator) for k in kinds]

    def reward(self, completion: str, question: Question) -> float:
        """Return 1.0 for the right number, else 0.0 (see ``verify``)."""
        return verify(completion, question.answer)


class Written:
    """Questions of a written data set (MATH, GSM8K), asked as they stand, answered at length.

    ``final`` says where the answer is in a completion: in the last ``\\boxed{}``, or the last number. Raises
    ValueError when there is no question.
    """

    prefix = ""
    stops: tuple[str, ...] = ()

    def __init__(self, questions: Sequence[Question], *, final: Literal["boxed", "number"]) -> None:
        """Keep the questions to draw from."""
        if not questions:
            raise ValueError("a written task needs at least one question")
        self.questions = questions
        self._final = {"boxed": last_boxed, "number": last_number}[final]

    def draw(self, count: int, generator: torch.Generator) -> list[Question]:
        """Draw ``count`` questions uniformly, with replacement."""
        return [self.questions[i] for i in torch.randint(len(self.questions), (count,), generator=generator).tolist()]

    def reward(self, completion: str, question: Question) -> float:
        """Return 1.0 when the final answer equals the question's, spaces aside, else 0.0."""
        found = self._final(completion)
        return float(found is not None and found.replace(" ", "") == question.answer.replace(" ", ""))


def last_boxed(text: str) -> str | None:
    """Return what stands in the last ``\\boxed{...}`` of ``text``, inner braces matched; None if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for end in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end].strip()
    return None


def last_number(text: str) -> str | None:
    """Return the last number of ``text`` without thousands separators; None if there is none."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else None


def verify(completion: str, answer: str) -> float:
    """Return the reward of a completion: 1.0 when the text before its first newline is ``answer``, else 0.0.

    Spaces around the answer do not matter; anything else does (``"07"`` or ``"7."`` is not ``"7"``).
    """
    return float(completion.split("\n", 1)[0].strip() == answer)
