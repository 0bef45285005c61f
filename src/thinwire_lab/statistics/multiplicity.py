"""Several data sets, one claim: rules that keep the chance of a false claim at ``alpha``, and superiority afterwards.

*co-primary*: the claim needs every data set. Each is judged at full ``alpha`` (intersection-union): nothing is gained
by picking, so nothing is paid. *fixed sequence*: data sets stand in an order that was fixed before; each is judged at
full ``alpha`` as long as all before it passed. *Holm*: any data set may pass by itself, so the smallest p value is held
to ``alpha / k``, the next to ``alpha / (k - 1)``, and so on. The rule is chosen before the first run.

Superiority may be asked after non-inferiority on the same bound and at the same level, without a penalty: the two
hypotheses are nested, so the tests are a fixed sequence (CPMP 2000, points to consider on switching).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from thinwire_lab.statistics.judgement import NonInferiority

FamilyRule = Literal["fixed sequence", "co-primary", "holm"]
Established = Literal["non-inferior", "not established"]


@dataclass(frozen=True)
class Family:
    """Verdict and adjusted p value by data set, in the order given; adjusted p is 1 where a bound was infeasible."""

    rule: FamilyRule
    alpha: float
    verdicts: dict[str, Established]
    adjusted_p: dict[str, float]
    sentence: str


@dataclass(frozen=True)
class Superiority:
    """Whether the candidate is better than the baseline, asked only where it is non-inferior."""

    verdict: Literal["superior", "not established", "not asked"]
    sentence: str


def _checked(results: Mapping[str, NonInferiority]) -> tuple[list[str], list[float], float]:
    if not results:
        raise ValueError("a family needs at least one data set, got none")
    levels = {result.alpha for result in results.values()}
    if len(levels) > 1:
        raise ValueError(f"all data sets of a family are judged at one level, got alpha {sorted(levels)}")
    p_values = [
        1.0 if result.verdict == "infeasible" or math.isnan(result.p_value) else result.p_value
        for result in results.values()
    ]
    return list(results), p_values, levels.pop()


def _family(rule: FamilyRule, names: list[str], adjusted: list[float], passed: list[bool], alpha: float) -> Family:
    verdicts: dict[str, Established] = {
        name: "non-inferior" if good else "not established" for name, good in zip(names, passed, strict=True)
    }
    won = [name for name, good in zip(names, passed, strict=True) if good]
    found = f"is established on {' and '.join(won)}" if won else "is not established on any of them"
    sentence = f"By the rule {rule} over {', '.join(names)}, non-inferiority {found} (one-sided alpha {alpha:g})."
    return Family(rule, alpha, verdicts, dict(zip(names, adjusted, strict=True)), sentence)


def fixed_sequence(results: Mapping[str, NonInferiority]) -> Family:
    """Judge data sets in the order of the mapping, each at full alpha, until one fails.

    Raises ValueError for no data set and for different levels.
    """
    names, p_values, alpha = _checked(results)
    adjusted = [max(p_values[: place + 1]) for place in range(len(names))]
    good = [result.verdict == "non-inferior" for result in results.values()]
    return _family("fixed sequence", names, adjusted, [all(good[: place + 1]) for place in range(len(names))], alpha)


def co_primary(results: Mapping[str, NonInferiority]) -> Family:
    """All data sets or none, each at full alpha. Raises ValueError as :func:`fixed_sequence` does."""
    names, p_values, alpha = _checked(results)
    together = all(result.verdict == "non-inferior" for result in results.values())
    return _family("co-primary", names, [max(p_values)] * len(names), [together] * len(names), alpha)


def holm(results: Mapping[str, NonInferiority]) -> Family:
    """Step down from the smallest p value (Holm 1979). Raises ValueError as :func:`fixed_sequence` does."""
    names, p_values, alpha = _checked(results)
    order = sorted(range(len(names)), key=lambda place: p_values[place])
    adjusted, largest = [1.0] * len(names), 0.0
    for rank, place in enumerate(order):
        largest = max(largest, min(1.0, (len(names) - rank) * p_values[place]))
        adjusted[place] = largest
    return _family("holm", names, adjusted, [p_value <= alpha for p_value in adjusted], alpha)


def superiority(result: NonInferiority) -> Superiority:
    """Ask a non-inferior result whether its bound lies below zero too, at the same level."""
    level = f"{100 * (1 - result.alpha):g} %"
    if result.verdict != "non-inferior":
        return Superiority("not asked", "Superiority is asked only where non-inferiority is established.")
    if result.upper_bound < 0:
        return Superiority(
            "superior", f"The one-sided {level} bound lies below zero as well, so the candidate is better."
        )
    return Superiority(
        "not established", f"The candidate is non-inferior, and at {level} not shown to be better than the baseline."
    )
