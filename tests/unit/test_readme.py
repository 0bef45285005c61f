"""README says what the tree holds: its verdicts, its commands, its files."""

import re

import pytest

from thinwire.cli import app
from thinwire_lab.analysis.report import readme_table
from thinwire_lab.config import load_config
from thinwire_lab.provenance import SOURCES

ROOT = SOURCES.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LIBRARY = (ROOT / "docs" / "LIBRARY.md").read_text(encoding="utf-8")
CLAIMS = ROOT / "results" / "laptop" / "claims.csv"


def test_the_table_of_verdicts_is_that_of_the_committed_claims():
    shown = re.search(r"<!-- results: begin -->\n(.*?)<!-- results: end -->", README, re.DOTALL)[1]
    if CLAIMS.exists():
        assert shown == readme_table(CLAIMS, ROOT / "configs")
    else:
        assert shown.startswith("No results are committed yet")


def test_every_study_is_named_with_the_command_that_runs_it():
    for study in load_config(ROOT / "configs" / "config.yaml").studies:
        assert f"`{study}`" in README or f"snakemake {study}`" in README
        assert (ROOT / "docs" / f"{study}.md").is_file()


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, re.MULTILINE) + ["figures", "clean"])
def test_every_make_target_exists(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)h][^)]*)\)", README))
def test_every_link_leads_somewhere(link):
    assert (ROOT / link).exists()


def test_the_examples_of_the_library_page_run_one_after_the_other():
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY, re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "docs/LIBRARY.md", "exec"), {})


def test_the_example_of_the_readme_compiles():
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = set(re.findall(r"\b(\w+)\(", block))
    assert {"encode", "diff", "apply", "decode", "Publisher", "DirectoryStore", "Subscriber"} <= names
    compile(block, "README.md", "exec")


def test_every_command_stands_on_the_library_page():
    listed = set(re.findall(r"^\| `thinwire (\w+) ", LIBRARY, re.MULTILINE))
    assert listed == {command.name for command in app.registered_commands}


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)h][^)]*)\)", LIBRARY))
def test_every_link_of_the_library_page_leads_somewhere(link):
    assert (ROOT / "docs" / link).exists()
