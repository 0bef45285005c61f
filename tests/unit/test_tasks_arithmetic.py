"""The arithmetic task: what is asked is right, what is rewarded is right, and a generator fixes it all."""

from collections import Counter

import pytest
import torch

from thinwire.tasks import KINDS, Arithmetic, Question, Written, last_boxed, last_number, verify


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_every_answer_is_the_value_of_its_prompt() -> None:
    task = Arithmetic(dict.fromkeys(KINDS, 1.0), shots=4, generator=generator())
    for question in task.draw(300, generator(1)):
        expression = question.prompt.removesuffix(" =")
        assert question.answer == str(eval(expression, {"__builtins__": {}}))
        kind = KINDS[question.kind]
        a, _, b = expression.split(" ")
        assert kind.low <= int(a) <= kind.high
        assert kind.low <= int(b) <= kind.high
    for line in task.prefix.splitlines():
        left, right = line.split(" = ")
        assert right == str(eval(left, {"__builtins__": {}}))


def test_shots_follow_the_shares_and_never_repeat() -> None:
    task = Arithmetic({"add_0_9": 0.5, "multiply_0_9": 0.5}, shots=4, generator=generator())
    lines = task.prefix.splitlines()
    assert len(set(lines)) == 4
    assert task.prefix.endswith("\n")
    assert ["*" in line for line in lines] == [False, True, False, True]
    uneven = Arithmetic({"add_0_9": 6.0, "multiply_0_9": 2.0}, shots=8, generator=generator())
    assert uneven.prefix.count("*") == 2


def test_shares_hold_and_draws_repeat_with_their_generator() -> None:
    task = Arithmetic({"add_0_9": 3.0, "subtract_0_9": 1.0}, shots=2, generator=generator())
    questions = task.draw(2000, generator(5))
    counts = Counter(q.kind for q in questions)
    assert abs(counts["add_0_9"] / 2000 - 0.75) < 0.04
    assert questions == task.draw(2000, generator(5))
    assert questions != task.draw(2000, generator(6))


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        (" 7\n", 1.0),
        (" 7", 1.0),
        ("7\n8 +", 1.0),
        (" 70", 0.0),
        (" 07\n", 0.0),
        (" 7.\n", 0.0),
        ("\n7", 0.0),
        ("", 0.0),
    ],
)
def test_reward(completion: str, reward: float) -> None:
    assert verify(completion, "7") == reward


def test_negative_answers() -> None:
    assert verify(" -6\n", "-6") == 1.0
    assert verify(" 6\n", "-6") == 0.0


def test_bad_mixes_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of sum 'divide'"):
        Arithmetic({"divide": 1.0}, shots=1, generator=generator())
    with pytest.raises(ValueError, match="must be positive"):
        Arithmetic({"add_0_9": 0.0}, shots=1, generator=generator())
    with pytest.raises(ValueError, match="no kind"):
        Arithmetic({}, shots=1, generator=generator())


@pytest.mark.parametrize(
    ("text", "boxed", "number"),
    [
        (r"so \boxed{1} or \boxed{\frac{1}{2}}.", r"\frac{1}{2}", "2"),
        ("it costs $1,234.50 in all", None, "1234.50"),
        (r"\boxed{ -7 }", "-7", "-7"),
        (r"\boxed{never closed", None, None),
        ("no answer", None, None),
    ],
)
def test_final_answers(text: str, boxed: str | None, number: str | None) -> None:
    assert last_boxed(text) == boxed
    assert last_number(text) == number


def test_written_questions() -> None:
    asked = [Question("math", f"What is {i}?", str(i)) for i in range(5)]
    task = Written(asked, final="boxed")
    drawn = task.draw(200, generator(2))
    assert set(drawn) == set(asked)
    assert drawn == task.draw(200, generator(2))
    assert task.reward(r"It is \boxed{ 3}.", asked[3]) == 1.0
    assert task.reward("It is 3.", asked[3]) == 0.0
    with pytest.raises(ValueError, match="at least one question"):
        Written([], final="number")
