"""The rules by which a claim is judged: each looks at summaries and answers with a three-valued verdict.

*holds*: the whole 95 % interval satisfies the rule. *fails*: the whole interval violates it. *undecided*: the interval
straddles, or there is none because a single run was made. So a noisy measurement can only end undecided. Exact checks
(equal or not) have n and no width.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.intervals import LEVEL, Interval, t_interval
from thinwire_lab.analysis.noninferiority import noninferiority, power
from thinwire_lab.config import Strict

Verdict = Literal["holds", "fails", "undecided", "not tested", "stale"]
Cells = Mapping[str, Sequence[str]]
"""Role (``cell``, or ``left`` and ``right``, ``numerator`` and ``denominator``, ...) -> the cells that may fill it."""


@dataclass(frozen=True)
class Finding:
    """What a rule found. Empty fields are None; an exact check has ``n`` and no interval."""

    verdict: Verdict
    reason: str
    n: int | None = None
    estimate: float | None = None
    lower: float | None = None
    upper: float | None = None
    level: float | None = None
    cell: str = ""


class Condition(Strict):
    """One bound, or two with ``between``."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    between: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one(self) -> "Condition":
        if len(self.model_fields_set) != 1:
            raise ValueError("a condition has exactly one of above, at_least, below, at_most, between")
        return self

    @property
    def text(self) -> str:
        """As in ``>= 0.989``."""
        if self.between is not None:
            return f"{self.between[0]:g} to {self.between[1]:g}"
        signs = {">": self.above, ">=": self.at_least, "<": self.below, "<=": self.at_most}
        return next(f"{sign} {bound:g}" for sign, bound in signs.items() if bound is not None)

    def satisfied(self, value: float) -> bool:
        """Whether one number meets the condition."""
        if self.between is not None:
            return self.between[0] <= value <= self.between[1]
        return (
            (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    def judge(self, interval: Interval) -> tuple[Verdict, str]:
        """Verdict and reason for an interval."""
        if interval.lower is None or interval.upper is None:
            side = "meets" if self.satisfied(interval.mean) else "misses"
            return "undecided", f"one value has no interval; alone it {side} the rule"
        ends = self.satisfied(interval.lower), self.satisfied(interval.upper)
        if all(ends):
            return "holds", "the whole interval meets the rule"
        spans = self.between is not None and interval.lower < self.between[0] and interval.upper > self.between[1]
        if any(ends) or spans:
            return "undecided", "the interval straddles the rule"
        return "fails", "the whole interval misses the rule"


def _only(cells: Cells, role: str) -> str:
    if role not in cells:
        raise EvidenceError(f"no cell is named as {role}")
    if len(cells[role]) != 1:
        raise EvidenceError(f"{role} must be one cell, got {len(cells[role])}")
    return cells[role][0]


def _from_interval(condition: Condition, interval: Interval, cell: str, note: str = "") -> Finding:
    verdict, reason = condition.judge(interval)
    return Finding(
        verdict,
        f"{reason}; {note}" if note else reason,
        n=interval.n,
        estimate=interval.mean,
        lower=interval.lower,
        upper=interval.upper,
        level=None if interval.lower is None else LEVEL,
        cell=cell,
    )


class Threshold(Strict):
    """The mean of a measure in one cell, over seeds, or of a metric over the steps of a run, against a bound."""

    kind: Literal["threshold"]
    measure: str = Field(description="a measure of the study; with `over: steps` a metric")
    scope: str = "all"
    over: Literal["seeds", "steps"] = "seeds"
    from_step: int = Field(default=0, description="with `over: steps`, earlier steps are left out")
    condition: Condition

    @property
    def text(self) -> str:
        """The rule in signs."""
        return self.condition.text

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Judge the cell in the role ``cell``. Raises EvidenceError."""
        cell = _only(cells, "cell")
        if self.over == "seeds":
            values = list(summaries.by_seed(cell, self.measure, self.scope).values())
            return _from_interval(self.condition, t_interval(values), cell)
        values = summaries.by_step(cell, self.measure, self.scope, self.from_step)
        note = f"interval over {len(values)} steps, whose neighbours may be correlated"
        return _from_interval(self.condition, t_interval(values), cell, note)


class Ratio(Strict):
    """The ratio of a measure between two cells, over the seeds that both have, as the mean of log-ratios.

    With several cells in the role ``denominator`` the one with the highest mean is taken: the strictest comparison for
    a claim that the numerator is larger.
    """

    kind: Literal["ratio"]
    measure: str
    denominator_measure: str = Field(default="", description="where the denominator is another measure")
    scope: str = "all"
    shown_as: Literal["ratio", "relative", "log"] = Field(
        default="ratio", description="plain ratio, ratio minus 1, or mean log-ratio"
    )
    condition: Condition

    @property
    def text(self) -> str:
        """The rule in signs."""
        return self.condition.text

    def _values(self, summaries: Summaries, cell: str, measure: str) -> dict[int, float]:
        values = summaries.by_seed(cell, measure, self.scope)
        for seed, value in values.items():
            if value <= 0:
                raise EvidenceError(f"{measure} of seed {seed} in the cell {cell} is {value:g}: no ratio can be formed")
        return values

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Judge ``numerator`` over ``denominator``. Raises EvidenceError."""
        over = _only(cells, "numerator")
        under_measure = self.denominator_measure or self.measure
        rivals = cells.get("denominator", ())
        if not rivals:
            raise EvidenceError("no cell is named as denominator")
        under = rivals[0] if len(rivals) == 1 else summaries.best(rivals, under_measure, self.scope)
        above, below = self._values(summaries, over, self.measure), self._values(summaries, under, under_measure)
        shared = sorted(above.keys() & below.keys())
        if not shared:
            raise EvidenceError("the two cells have no seed in common")
        shown = {"ratio": math.exp, "relative": math.expm1, "log": float}[self.shown_as]
        logs = t_interval([math.log(above[seed] / below[seed]) for seed in shared])
        interval = replace(
            logs,
            mean=shown(logs.mean),
            lower=None if logs.lower is None else shown(logs.lower),
            upper=None if logs.upper is None else shown(logs.upper),
        )
        cell = over if over == under else f"{over} against {under}"
        return _from_interval(self.condition, interval, cell)


class AllEqual(Strict):
    """Every step's value of each metric is the same double in two cells, seed by seed."""

    kind: Literal["all_equal"]
    metrics: list[str] = Field(min_length=1, description="`metric`, or `metric@scope` for another scope than `all`")

    @property
    def text(self) -> str:
        """The rule in words."""
        return "all equal"

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Compare fingerprints of all steps; ``n`` counts the compared values. Raises EvidenceError."""
        left, right = _only(cells, "left"), _only(cells, "right")
        compared, unequal = 0, []
        for named in self.metrics:
            metric, _, scope = named.partition("@")
            first, second = (summaries.traces(cell, metric, scope or "all") for cell in (left, right))
            if first.keys() != second.keys():
                raise EvidenceError(f"{named} was recorded for the seeds {sorted(first)} and {sorted(second)}")
            compared += sum(steps for steps, _ in first.values())
            unequal += [f"{named} of seed {seed}" for seed in sorted(first) if first[seed] != second[seed]]
        if unequal:
            return Finding("fails", f"differs: {', '.join(unequal)}", n=compared, cell=f"{left} against {right}")
        return Finding("holds", f"{compared} values compared, all equal", n=compared, cell=f"{left} against {right}")


class Never(Strict):
    """A count of failures that is zero in every run: an exact check."""

    kind: Literal["never"]
    measure: str = Field(description="failures of a run")
    checked: str = Field(description="measure that counts the checks of a run")
    scope: str = "all"

    @property
    def text(self) -> str:
        """The rule in words."""
        return "all equal"

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Sum failures and checks over every seed of every cell in the role ``cell``. Raises EvidenceError."""
        failed = checks = 0.0
        named = cells.get("cell", ())
        if not named:
            raise EvidenceError("no cell is named as cell")
        for cell in named:
            failed += sum(summaries.by_seed(cell, self.measure, self.scope).values())
            checks += sum(summaries.by_seed(cell, self.checked, self.scope).values())
        text = named[0] if len(named) == 1 else f"{len(named)} cells"
        if not checks:
            raise EvidenceError("nothing was checked")
        if failed:
            return Finding("fails", f"{failed:g} of {checks:g} checks failed", n=int(checks), cell=text)
        return Finding("holds", f"{checks:g} checks, all equal", n=int(checks), cell=text)


class NotEstablished(Strict):
    """Non-inferiority is not established by a study that would have had the power to establish it."""

    kind: Literal["noninferiority"]
    measure: str
    scope: str = "all"
    margin: float = 0.01
    alpha: float = 0.05
    method: Literal["paired-t"] = Field(default="paired-t", description="of the bound; power is of the same")
    power: float = Field(default=0.8, description="needed at a true difference of 0")

    @property
    def text(self) -> str:
        """The rule in signs."""
        return f"bound > log {1 + self.margin:g}"

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Judge ``numerator`` (the candidate) against ``denominator`` (the baseline). Raises EvidenceError."""
        candidate, baseline = _only(cells, "numerator"), _only(cells, "denominator")
        cell = f"{candidate} against {baseline}"
        ours = summaries.by_seed(candidate, self.measure, self.scope)
        theirs = summaries.by_seed(baseline, self.measure, self.scope)
        shared = sorted(ours.keys() & theirs.keys())
        if not shared:
            raise EvidenceError("the two cells have no seed in common")
        pairs = [theirs[seed] for seed in shared], [ours[seed] for seed in shared]
        result = noninferiority(*pairs, margin=self.margin, alpha=self.alpha)
        finding = Finding("undecided", result.sentence, n=result.n, estimate=result.estimate, cell=cell)
        if result.verdict == "infeasible":
            return replace(finding, reason=result.reason)
        finding = replace(finding, upper=result.upper_bound, level=1 - self.alpha)
        if result.verdict == "non-inferior":
            return replace(finding, verdict="fails")
        sd = t_interval([math.log(mine / base) for base, mine in zip(*pairs, strict=True)]).sd or 0.0
        reached = power(result.n, sd, margin=self.margin, alpha=self.alpha)
        said = f"{result.sentence} Power at a true difference of 0, from this study's own spread: {reached:.3f}"
        if reached < self.power:
            return replace(finding, reason=f"{said}, under the {self.power:g} that the claim needs.")
        return replace(finding, verdict="holds", reason=f"{said}.")


class NotTested(Strict):
    """A claim that nothing measures yet."""

    kind: Literal["not_tested"]
    planned: str = Field(description="the rule in signs, for when it is measured")
    reason: str

    @property
    def text(self) -> str:
        """The rule in signs."""
        return self.planned

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Raises EvidenceError with the reason."""
        raise EvidenceError(self.reason)


Part = Annotated[Threshold | Ratio | AllEqual | Never, Field(discriminator="kind")]


class Both(Strict):
    """Several rules that must all hold; numbers come from the last part that has an estimate."""

    kind: Literal["both"]
    parts: list[Part] = Field(min_length=2)

    @property
    def text(self) -> str:
        """The rules, joined."""
        return " and ".join(part.text for part in self.parts)

    def decide(self, summaries: Summaries, cells: Cells) -> Finding:
        """Holds when every part holds, fails when one fails, else undecided. Raises EvidenceError."""
        findings = [part.decide(summaries, cells) for part in self.parts]
        verdicts = [finding.verdict for finding in findings]
        worst: Verdict = "fails" if "fails" in verdicts else "undecided" if "undecided" in verdicts else "holds"
        shown = next((finding for finding in reversed(findings) if finding.estimate is not None), findings[-1])
        reason = "; ".join(
            f"{part.text}: {finding.verdict} ({finding.reason})"
            for part, finding in zip(self.parts, findings, strict=True)
        )
        return replace(shown, verdict=worst, reason=reason)


Rule = Annotated[Threshold | Ratio | AllEqual | Never | NotEstablished | NotTested | Both, Field(discriminator="kind")]
