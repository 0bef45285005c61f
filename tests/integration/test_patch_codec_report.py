"""Every goal of the patch library stands in the report, with what was found and whether it is met."""

import html
from pathlib import Path

from thinwire_lab.analysis.claims import judge
from thinwire_lab.analysis.reaches import load_reaches, read_reaches, write_reaches
from thinwire_lab.analysis.report import report
from thinwire_lab.analysis.summarise import read_table
from thinwire_lab.config import load_config
from thinwire_lab.tables import write_rows

ROOT = Path(__file__).parents[2]
CONFIGS = ROOT / "configs"


def measured(summaries, reaches):
    """Give the clock and the plain tables of the study the scopes that the goals are about."""
    for prefix in ("", "clock_"):
        for name, column in (("seeds", "measure"), ("curves", "metric")):
            path = summaries / "patch_codec" / f"{prefix}{name}.csv"
            table = read_table(path)
            known = set(table[column])
            rows = [list(row) for row in table.itertuples(index=False)]
            for reach in reaches:
                if reach.measure in known:
                    like = table[(table[column] == reach.measure) & (table["cell"] == reach.cell)]
                    like = like[like["scope"] == like["scope"].iloc[0]].assign(scope=reach.scope)
                    rows += [list(row) for row in like.itertuples(index=False)]
            write_rows(path, list(table.columns), rows)


def test_every_goal_is_a_row_of_the_report(planned_summaries):
    folder = planned_summaries("laptop")
    reaches = load_reaches(CONFIGS / "claims.yaml")
    measured(folder / "summaries", reaches)
    judge(CONFIGS / "claims.yaml", folder / "summaries", "laptop", folder / "claims.csv", lambda study: True)
    write_reaches(CONFIGS / "claims.yaml", folder / "summaries", folder / "reaches.csv", lambda study: True)
    rows = read_reaches(folder / "reaches.csv")
    assert set(rows["verdict"]) <= {"met", "met on the whole", "missed", ""}
    studies = load_config(CONFIGS / "config.yaml").studies
    report(folder, studies=studies, scale="laptop", out=folder / "report.html", configs=CONFIGS, docs=ROOT / "docs")
    page = html.unescape((folder / "report.html").read_text(encoding="utf-8"))
    assert page.count("<h3>Reach</h3>") == len({reach.study for reach in reaches})
    for reach in reaches:
        assert reach.what in page
        assert reach.condition is None or f'<td class="rule">{reach.condition.text}</td>' in page
    assert " MiB (" in page or " MiB<" in page
