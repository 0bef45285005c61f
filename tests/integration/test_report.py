"""From run tables through summaries, verdicts and a figure to the report and README's table, in a small project."""

import base64
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from thinwire_lab.analysis import plots
from thinwire_lab.analysis.claims import COLUMNS, judge, load_answers, load_claims, read_claims
from thinwire_lab.analysis.report import readme_table, report
from thinwire_lab.analysis.summarise import RunFiles, summarise
from thinwire_lab.config import ConfigError
from thinwire_lab.tables import RUN_COLUMNS, Metric, write_rows

METRICS = {"kept": Metric("kept", "share", "higher"), "seconds": Metric("seconds", "s", "lower", clock=True)}
STUDY = """\
question: How many weights stay as they are, & why?
experiment: kept_weights
base: {}
grid: [{axes: {part: [main, rest], lr: [3.0e-6], seed: [0, 1, 2]}, seconds: 1}]
measures: [{name: kept, metric: kept, reduce: mean}]
scales: {}
"""
CLAIMS = """\
answers:
  kept_weights: >
    {K-kept.estimate} of the weights ({K-kept.lower} to {K-kept.upper}, n = {K-kept.n})
    stay as they are: {K-kept.verdict}.
claims:
  - id: K-kept
    statement: Most weights don't change.
    source: a paper, table 1
    published: {text: "about 99 %"}
    study: kept_weights
    unit: share
    measured: mean over steps, t interval over seeds
    rule: {kind: threshold, measure: kept, condition: {at_least: 0.9}}
    cells: {laptop: {cell: "part=main,lr=3e-06"}}
  - id: K-why
    statement: It is because of <rounding>.
    source: a paper, section 2
    published: {text: stated}
    study: kept_weights
    unit: ratio
    measured: nothing yet
    rule: {kind: not_tested, planned: 0.85 to 1.15, reason: nothing measures it <yet>}
    cells: {}
  - id: K-missing
    statement: Another cell keeps them too.
    source: a paper
    published: {text: stated}
    study: kept_weights
    unit: share
    measured: mean over steps
    rule: {kind: threshold, measure: kept, condition: {at_least: 0.9}}
    cells: {laptop: {cell: "part=main,lr=1e-06"}}
"""
PAGE = """\
# Kept weights

Text before.

## Limits

- One model only <script>alert(1)</script>.
- `bfloat16` alone.

## More

Not a limit.
"""


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def project(tmp_path):
    write(tmp_path / "configs/studies/kept_weights.yaml", STUDY)
    write(tmp_path / "configs/claims.yaml", CLAIMS)
    write(tmp_path / "configs/figures.yaml", "kept: {summaries: [kept_weights], caption: Weights by step.}\n")
    write(tmp_path / "docs/kept_weights.md", PAGE)
    results = tmp_path / "results"
    runs = []
    for cell, base in (("part=main,lr=3e-06", 0.95), ("part=rest,lr=3e-06", 0.5)):
        for seed in range(3):
            place = results / "runs" / cell / str(seed)
            rows = [(step, "all", "kept", base + 0.001 * seed + 0.0001 * step) for step in range(4)]
            write_rows(place / "metrics.csv", RUN_COLUMNS, rows)
            write_rows(place / "clock.csv", RUN_COLUMNS, [(0, "all", "seconds", 12345.0)])
            runs.append(RunFiles(cell, seed, place / "metrics.csv", place / "clock.csv", place / "run.json"))
    measures = [
        {"name": "kept", "metric": "kept", "reduce": "mean"},
        {"name": "seconds", "metric": "seconds", "reduce": "last"},
    ]
    summaries = results / "summaries"
    summarise({"name": "kept_weights", "measures": measures}, runs, summaries / "kept_weights", METRICS)
    source = {"runs": 6, "seconds": 90.0, "machines": ["some processor, 2 cores"], "commits": ["abc"]}
    write(summaries / "kept_weights/source.json", json.dumps(source))
    return tmp_path


def judged(project, fresh=lambda study: True, scale="laptop"):
    out = project / "results/claims.csv"
    judge(project / "configs/claims.yaml", project / "results/summaries", scale, out, fresh)
    return read_claims(out).set_index("id")


def drawn(project):
    script = project / "paper_figures/kept.py"
    write(script.with_name("paper.mplstyle"), "font.size: 8\n")
    figure, ax = plots.start(str(script), 3, 2)
    tables = plots.read_tables(project / "results/summaries", "kept_weights")
    plots.band(ax, tables.curve("kept"), plots.style(0))
    plots.save(figure, str(script), SimpleNamespace(scale="laptop", out=project / "results/figures"), "note")
    return project / "results/figures/kept.png"


def written(project, name="report.html"):
    report(
        project / "results",
        studies=["kept_weights"],
        scale="laptop",
        out=project / "results" / name,
        configs=project / "configs",
        docs=project / "docs",
    )
    return (project / "results" / name).read_text(encoding="utf-8")


def test_judge_writes_one_row_a_claim_in_their_order(project):
    table = judged(project)
    header, *lines = (project / "results/claims.csv").read_text().splitlines()
    assert header == "id,verdict,study,cell,scale,n,unit,estimate,lower,upper,level,rule,reason" == ",".join(COLUMNS)
    assert [line.split(",")[0] for line in lines] == ["K-kept", "K-why", "K-missing"]
    kept = table.loc["K-kept"]
    assert (kept["verdict"], kept["n"], kept["level"], kept["rule"]) == ("holds", 3, 0.95, ">= 0.9")
    assert kept["estimate"] == pytest.approx(0.95115)
    assert (table.loc["K-why", "verdict"], table.loc["K-why", "reason"]) == ("not tested", "nothing measures it <yet>")
    assert table.loc["K-missing", "verdict"] == "not tested"
    assert "no kept in the cell part=main,lr=1e-06" in table.loc["K-missing", "reason"]
    assert table.loc["K-why", ["n", "estimate", "lower", "upper", "level"]].isna().all()


def test_older_code_makes_a_verdict_stale_and_another_scale_has_none(project):
    stale = judged(project, fresh=lambda study: False).loc["K-kept"]
    assert (stale["verdict"], stale["reason"]) == ("stale", "measured by older code; then: holds")
    smoke = judged(project, scale="smoke").loc["K-kept"]
    assert (smoke["verdict"], smoke["reason"]) == ("not tested", "no cell decides this claim at smoke scale")


def test_no_summaries_at_all_is_not_tested(project):
    out = project / "none.csv"
    judge(project / "configs/claims.yaml", project / "nowhere", "laptop", out, lambda study: True)
    assert set(read_claims(out)["verdict"]) == {"not tested"}


def test_the_report_says_what_was_found_and_fetches_nothing(project):
    judged(project)
    png = drawn(project)
    html = written(project)
    assert "How many weights stay as they are, &amp; why?" in html
    assert re.search(r"95\.\d\d % of the weights \(94\.\d\d % to 95\.\d\d %, n = 3\)\s+stay as they are: holds\.", html)
    assert base64.b64encode(png.read_bytes()).decode() in html
    assert "12,345" in html
    assert "6 runs, 1.5 minutes" in html
    assert "<code>bfloat16</code> alone" in html
    assert "Not a limit" not in html
    addresses = re.findall(r"""(?:src|href|action)\s*=\s*["']([^"']*)""", html)
    assert addresses
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"https?:|@import|url\(|<script|<link", html)
    assert "&lt;rounding&gt;" in html
    assert written(project, "again.html") == html


def test_a_report_without_figures_still_stands(project):
    judged(project)
    assert "<figure>" not in written(project)


def test_an_answer_whose_claim_was_not_tested_says_so(project):
    claims = project / "configs/claims.yaml"
    claims.write_text(claims.read_text().replace('{cell: "part=main,lr=3e-06"}', '{cell: "part=none"}'))
    judged(project)
    assert "Not answered at this scale: kept_weights has no kept in the cell part=none." in written(project)


def test_an_answer_may_quote_a_mean_of_the_study(project):
    claims = project / "configs/claims.yaml"
    place = "part=rest,lr=3e-06|all|kept"
    claims.write_text(claims.read_text().replace("{K-kept.estimate}", f"{{totals[{place}]}}"))
    judged(project)
    assert re.search(r"50\.1[12] % of the weights", written(project))
    claims.write_text(claims.read_text().replace("part=rest", "part=none"))
    assert "Not answered at this scale: part=none,lr=3e-06, all, kept was not measured." in written(project)


def test_a_report_on_other_claims_is_refused(project):
    judged(project)
    claims = project / "configs/claims.yaml"
    claims.write_text(claims.read_text().replace("K-missing", "K-renamed"))
    with pytest.raises(ConfigError, match="run `thinwire-lab judge` again"):
        written(project)


def test_readme_table(project):
    judged(project)
    lines = readme_table(project / "results/claims.csv", project / "configs").splitlines()
    assert lines[0] == "| claim | published | found [95 %] | n | verdict |"
    statement, published, found, n, verdict = (part.strip() for part in lines[2].strip("|").split("|"))
    assert (statement, published, n, verdict) == ("Most weights don't change.", "about 99 %", "3", "**holds**")
    assert re.fullmatch(r"95\.\d\d % \[94\.\d\d %, 95\.\d\d %\]", found)
    assert lines[-1] == "Scale: laptop. Each verdict is about this scale."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("kind: threshold", "kind: guess"), "claims.yaml: rule"),
        (("id: K-why", "id: K-kept"), "two claims are named K-kept"),
        (("at_least: 0.9", "at_least: high"), "claims.yaml: rule"),
        (("unit: share", "unity: share"), "claims.yaml: "),
        (("claims:", "statements:"), "must hold a list `claims`"),
    ],
)
def test_a_bad_claims_file_is_refused_in_one_sentence(project, change, said):
    path = project / "configs/claims.yaml"
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(ConfigError, match=said):
        load_claims(path)
    with pytest.raises(ConfigError, match="no such file"):
        load_claims(Path("nowhere.yaml"))


def test_an_answer_about_an_unknown_claim_is_refused(project):
    claims = project / "configs/claims.yaml"
    claims.write_text(claims.read_text().replace("{K-kept.estimate}", "{K-none.estimate}"))
    judged(project)
    assert load_answers(claims)["kept_weights"].startswith("{K-none.estimate}")
    with pytest.raises(ValueError, match="'K-none'"):
        written(project)
