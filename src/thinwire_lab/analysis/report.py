"""``report.html``: every study's question, answer, figures, verdicts, numbers and limits in one self-contained file.

The page fetches nothing: figures are embedded, and it can be mailed, archived or opened without a network. It says only
what the summaries and ``claims.csv`` say; limits come from the section "Limits" of each study's page in ``docs/``.
"""

import base64
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markdown_it import MarkdownIt
from markupsafe import Markup

from thinwire_lab.analysis.bounds import read_bounds
from thinwire_lab.analysis.claims import Claim, load_answers, load_claims, read_claims
from thinwire_lab.analysis.page import PAGE
from thinwire_lab.analysis.reaches import read_reaches
from thinwire_lab.analysis.summarise import read_summary
from thinwire_lab.analysis.wording import answer, found, number, records
from thinwire_lab.config import ConfigError, load_study
from thinwire_lab.tables import write_text

_LEADS = {
    "smoke": "A first look: every step of every study, tiny. Nothing here is evidence about the papers.",
    "laptop": "Real pretrained weights and real text, on a small machine without a GPU. A verdict here is about this "
    "scale; the papers' models are larger.",
    "paper": "The papers' models and data sets.",
}


def _verdict_row(row: dict[str, Any], claim: Claim) -> dict[str, str]:
    n = float(row["n"])
    return {
        **{name: str(row[name]) for name in ("id", "verdict", "study", "cell", "rule", "reason")},
        "statement": claim.statement,
        "published": claim.published.text,
        "measured": " ".join(claim.measured.split()),
        "found": found(row),
        "n": "" if math.isnan(n) else f"{n:,.0f}",
        "css": str(row["verdict"]).replace(" ", "-"),
    }


def _figures(name: str, folder: Path, configs: Path) -> list[dict[str, str]]:
    figures = yaml.safe_load((configs / "figures.yaml").read_text(encoding="utf-8"))
    shown = []
    for figure, described in figures.items():
        path = folder / "figures" / f"{figure}.png"
        if described["summaries"][0] == name and path.exists():
            png = base64.b64encode(path.read_bytes()).decode()
            shown.append({"png": png, "caption": " ".join(str(described["caption"]).split())})
    return shown


def _cell_text(row: dict[str, Any]) -> str:
    unit = str(row["unit"])
    mean = number(float(row["mean"]), unit)
    if math.isnan(float(row["lower"])) or row["lower"] == row["upper"]:
        return mean
    return f"{mean} [{number(float(row['lower']), unit)}, {number(float(row['upper']), unit)}]"


def _table(title: str, rows: list[dict[str, Any]], keys: tuple[str, ...]) -> dict[str, Any]:
    """Totals as a table of the ``keys`` x measures."""
    columns = list(dict.fromkeys(row["measure"] for row in rows))
    units = {row["measure"]: row["unit"] for row in rows}
    groups: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] or "all" for key in keys), {})[row["measure"]] = row
    lines = [
        {
            "keys": list(key),
            "n": max(int(row["n"]) for row in measures.values()),
            "values": [_cell_text(measures[name]) if name in measures else "" for name in columns],
        }
        for key, measures in groups.items()
    ]
    heads = [name if units[name] in ("", "1", "share", "ratio") else f"{name} ({units[name]})" for name in columns]
    return {"title": title, "keys": keys, "columns": heads, "rows": lines}


def _tables(folder: Path) -> list[dict[str, Any]]:
    """One table for each value of an axis ``part``, and one more where measures were kept by scope."""
    totals = [row for name in ("totals.csv", "clock_totals.csv") for row in records(read_summary(folder / name))]
    parts: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for row in totals:
        axes = str(row["cell"]).split(",")
        named = [axis.removeprefix("part=") for axis in axes if axis.startswith("part=")]
        cell = ",".join(axis for axis in axes if not axis.startswith("part="))
        scoped = row["scope"] != "all"
        parts.setdefault((named[0] if named else "all cells", scoped), []).append({**row, "cell": cell})
    return [
        _table(f"{part}, by scope" if scoped else part, rows, ("cell", "scope") if scoped else ("cell",))
        for (part, scoped), rows in sorted(parts.items(), key=lambda item: item[0])
    ]


def _means(folder: Path) -> dict[str, str]:
    """Means of a study for its answer: ``CELL|SCOPE|MEASURE`` -> text."""
    paths = [folder / name for name in ("totals.csv", "clock_totals.csv") if (folder / name).exists()]
    rows = [row for path in paths for row in records(read_summary(path))]
    return {
        f"{row['cell']}|{row['scope']}|{row['measure']}": number(float(row["mean"]), str(row["unit"])) for row in rows
    }


def _bounds(path: Path, study: str) -> list[dict[str, str]]:
    """One-sided bounds of the study's paired comparisons, a row for each method."""
    rows = [row for row in records(read_bounds(path)) if row["study"] == study] if path.exists() else []
    return [
        {
            "candidate": row["candidate"],
            "baseline": row["baseline"],
            "method": row["method"],
            "n": number(row["n"]),
            "estimate": number(row["estimate"], "log-ratio"),
            "bound": number(row["upper_bound"], "log-ratio"),
            "p": number(row["p_value"]),
            "verdict": row["reason"] if row["verdict"] == "infeasible" else row["verdict"],
            "family": row["family_verdict"],
        }
        for row in rows
    ]


def _reaches(path: Path, study: str) -> list[dict[str, str]]:
    """The study's own goals with what was found: the number, and the lowest and highest of seeds or steps."""
    rows = [row for row in records(read_reaches(path)) if row["study"] == study] if path.exists() else []
    return [
        {
            **{name: str(row[name]) for name in ("what", "cell", "reach", "verdict", "published", "reason")},
            "found": "" if math.isnan(row["found"]) else _with_ends(row),
            "n": "" if math.isnan(row["n"]) else number(row["n"]),
            "css": str(row["verdict"]).replace(" ", "-"),
        }
        for row in rows
    ]


def _with_ends(row: dict[str, Any]) -> str:
    unit = "" if row["unit"] in ("", "1", "share", "ratio") else f" {row['unit']}"
    mean, low, high = (number(float(row[name]), str(row["unit"])) for name in ("found", "lowest", "highest"))
    return f"{mean}{unit}" if low == high else f"{mean}{unit} ({low} to {high})"


def _limits(page: Path) -> Markup:
    """The section "Limits" of a study's page, as HTML with raw HTML left out."""
    if not page.exists():
        return Markup("")
    match = re.search(r"^## Limits\s*\n(.*?)(?=^## |\Z)", page.read_text(encoding="utf-8"), re.S | re.M)
    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    # the renderer escapes all raw HTML, so its output is safe to embed
    return Markup(renderer.render(match[1])) if match else Markup("")


def _origin(path: Path) -> str:
    if not path.exists():
        return ""
    source = json.loads(path.read_text(encoding="utf-8"))
    runs, minutes = int(source["runs"]), float(source["seconds"]) / 60
    machines = ", ".join(source["machines"])
    commits = ", ".join(source["commits"])
    return f"{runs} runs, {minutes:.1f} minutes of run time together, on {machines}; commit {commits}."


def _study(name: str, folder: Path, verdicts: list[dict[str, str]], configs: Path, docs: Path) -> dict[str, Any]:
    summaries = folder / "summaries" / name
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "question": load_study(name, configs).question,
        "claims": [row for row in verdicts if row["study"] == name],
        "figures": _figures(name, folder, configs),
        "bounds": _bounds(folder / "bounds.csv", name),
        "reaches": _reaches(folder / "reaches.csv", name),
        "tables": _tables(summaries) if (summaries / "totals.csv").exists() else [],
        "limits": _limits(docs / f"{name}.md"),
        "origin": _origin(summaries / "source.json"),
    }


def _counts(verdicts: list[dict[str, str]]) -> str:
    order = ("holds", "fails", "undecided", "not tested", "stale")
    found_here = [row["verdict"] for row in verdicts]
    return ", ".join(f"{found_here.count(verdict)} {verdict}" for verdict in order if verdict in found_here)


def report(
    folder: Path,
    *,
    studies: Sequence[str],
    scale: str,
    out: Path,
    configs: Path = Path("configs"),
    docs: Path = Path("docs"),
) -> None:
    """Write the report of ``folder`` (``claims.csv``, ``summaries/``, ``figures/``) to ``out``, whole or not at all.

    Raises ConfigError where ``claims.csv`` and ``claims.yaml`` list different claims, and FileNotFoundError without
    a ``claims.csv``. A figure that was not drawn is left out.
    """
    claims = {claim.id: claim for claim in load_claims(configs / "claims.yaml")}
    table = read_claims(folder / "claims.csv")
    if list(table["id"]) != list(claims):
        raise ConfigError(
            f"{folder / 'claims.csv'}: lists other claims than claims.yaml; run `thinwire-lab judge` again"
        )
    verdicts = [_verdict_row(row, claims[row["id"]]) for row in records(table)]
    answers = load_answers(configs / "claims.yaml")
    sections = [
        {
            **_study(name, folder, verdicts, configs, docs),
            "answer": answer(answers.get(name, ""), table, _means(folder / "summaries" / name)),
        }
        for name in studies
    ]
    page = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(PAGE)
    html = page.render(scale=scale, lead=_LEADS[scale], counts=_counts(verdicts), claims=verdicts, studies=sections)
    write_text(out, html)


def readme_table(claims_csv: Path, configs: Path = Path("configs")) -> str:
    """The verdicts as a Markdown table for README, ended by a line feed."""
    claims = {claim.id: claim for claim in load_claims(configs / "claims.yaml")}
    lines = ["| claim | published | found [95 %] | n | verdict |", "|---|---|---|---|---|"]
    scale = ""
    for row in records(read_claims(claims_csv)):
        scale, claim, n = str(row["scale"]), claims[row["id"]], float(row["n"])
        count = "" if math.isnan(n) else f"{n:,.0f}"
        lines.append(f"| {claim.statement} | {claim.published.text} | {found(row)} | {count} | **{row['verdict']}** |")
    return "\n".join([*lines, "", f"Scale: {scale}. Each verdict is about this scale.", ""])
