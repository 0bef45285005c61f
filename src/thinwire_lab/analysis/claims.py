"""Published claims and their verdicts.

``configs/claims.yaml`` holds every claim with its rule and the cells that decide at each scale, fixed before the run.
:func:`judge` looks up the cells' summaries, applies the rules, and writes ``claims.csv``. A verdict is about its scale:
one found at laptop scale says nothing of the paper's models. A failing claim is a result, not an error.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import yaml
from pydantic import Field, ValidationError, field_validator

from thinwire_lab.analysis.evidence import EvidenceError, Summaries
from thinwire_lab.analysis.rules import Finding, NotEstablished, NotTested, Rule
from thinwire_lab.analysis.summarise import read_table
from thinwire_lab.config import ConfigError, Protocol, Scale, Strict
from thinwire_lab.tables import write_rows

COLUMNS = (
    *("id", "verdict", "study", "cell", "scale", "n", "unit", "estimate", "lower", "upper", "level", "rule", "reason"),
)


Protocols = Callable[[str, Collection[str]], tuple[Protocol | None, str]]
"""(study, deciding cells) -> the study's protocol, if it has one, and why it doesn't cover these cells, if so."""


def _no_protocol(study: str, cells: Collection[str]) -> tuple[Protocol | None, str]:
    return None, ""


class Published(Strict):
    """What the paper states."""

    text: str = Field(description="in its own terms")


class Claim(Strict):
    """A published statement with its rule of judgement."""

    id: str
    statement: str = Field(description="one sentence")
    source: str = Field(description="where it is stated")
    published: Published
    study: str
    unit: str = Field(description="share, ratio, ...; shares and relative differences are fractions")
    measured: str = Field(description="what is measured, and over what its interval runs")
    rule: Rule
    cells: dict[Scale, dict[str, list[str]]] = Field(description="scale -> role in the rule -> deciding cells")

    @field_validator("cells", mode="before")
    @classmethod
    def _lists(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {
            scale: {role: [cells] if isinstance(cells, str) else cells for role, cells in roles.items()}
            if isinstance(roles, dict)
            else roles
            for scale, roles in value.items()
        }


def load_claims(path: Path) -> list[Claim]:
    """Read ``claims.yaml``. Raises ConfigError for a missing, malformed or doubled claim."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        claims = [Claim.model_validate(entry) for entry in content["claims"]]
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: must hold a list `claims`: {error!r}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{path}: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from None
    names = [claim.id for claim in claims]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{path}: two claims are named {doubled[0]}")
    return claims


def load_answers(path: Path) -> dict[str, str]:
    """Study -> template of its one-sentence answer, from the same file (see :func:`.wording.answer`)."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {str(study): " ".join(str(text).split()) for study, text in content.get("answers", {}).items()}


def _unregistered(claim: Claim, tables: Summaries, scale: str, cells: Sequence[str], protocols: Protocols) -> str:
    """Why a claim that is judged under a protocol was not measured under it; empty where it was, or needs none."""
    protocol, objection = protocols(claim.study, cells)
    if protocol is None or claim.id not in protocol.claims or objection:
        return objection if protocol is not None and claim.id in protocol.claims else ""
    if isinstance(claim.rule, NotEstablished):
        rule = (claim.rule.measure, claim.rule.margin, claim.rule.alpha, claim.rule.method)
        fixed = (protocol.measure, protocol.margin, protocol.alpha, protocol.method)
        if rule != fixed:
            return f"the rule judges {rule}, the protocol {fixed}"
    wanted = sorted(next((seeds for at, seeds in protocol.seeds.items() if at == scale), []))
    for cell in cells:
        seeds = sorted(tables.by_seed(cell, protocol.measure))
        if seeds != wanted:
            return f"the cell {cell} has the seeds {seeds}, the protocol {wanted}"
    return ""


def _decide(claim: Claim, summaries: Path, scale: str, fresh: Callable[[str], bool], protocols: Protocols) -> Finding:
    if isinstance(claim.rule, NotTested):
        return Finding("not tested", claim.rule.reason)
    cells = {str(at): roles for at, roles in claim.cells.items()}.get(scale)
    if cells is None:
        return Finding("not tested", f"no cell decides this claim at {scale} scale")
    deciding = list(dict.fromkeys(cell for group in cells.values() for cell in group))
    planned, tables = "; ".join(deciding), Summaries(summaries, claim.study)
    try:
        finding = claim.rule.decide(tables, cells)
        if unregistered := _unregistered(claim, tables, scale, deciding, protocols):
            raise EvidenceError(unregistered)
    except EvidenceError as error:
        return Finding("not tested", str(error), cell=planned)
    if not fresh(claim.study):
        return replace(finding, verdict="stale", reason=f"measured by older code; then: {finding.verdict}")
    return finding


def judge(
    claims_yaml: Path,
    summaries: Path,
    scale: str,
    out: Path,
    fresh: Callable[[str], bool],
    protocols: Protocols = _no_protocol,
) -> list[tuple[Claim, Finding]]:
    """Judge every claim from ``summaries`` (one folder a study), write ``out`` and return the findings.

    ``fresh`` says whether a study's summaries come from the present code, ``protocols`` what was fixed before its runs:
    a claim under a protocol that changed, or came late, is not tested. Columns of the CSV are ``COLUMNS``; fields
    are empty where nothing was tested, and shares are fractions. Raises ConfigError for a bad ``claims_yaml``.
    """
    findings = [(claim, _decide(claim, summaries, scale, fresh, protocols)) for claim in load_claims(claims_yaml)]
    rows = []
    for claim, found in findings:
        numbers = (found.estimate, found.lower, found.upper, found.level)
        shown = ["" if number is None else number for number in numbers]
        n = "" if found.n is None else found.n
        text = claim.rule.text
        rows.append(
            (claim.id, found.verdict, claim.study, found.cell, scale, n, claim.unit, *shown, text, found.reason)
        )
    write_rows(out, COLUMNS, rows)
    return findings


def read_claims(path: Path) -> pd.DataFrame:
    """Read ``claims.csv``: numbers as doubles, NaN where empty; all else text. Raises FileNotFoundError."""
    return read_table(path, real=("n", "estimate", "lower", "upper", "level"))
