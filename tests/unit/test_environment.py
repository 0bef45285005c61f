"""pyproject.toml, constraints.txt, environment.yml and the Makefile name one set of packages."""

import re
import tomllib

import pytest
import rattler
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from thinwire_lab.provenance import SOURCES

ROOT = SOURCES.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
PINS = {
    canonicalize_name(name): version
    for name, version in (
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"
    )
}
DECLARED = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]


@pytest.mark.parametrize("line", DECLARED)
def test_every_declared_package_is_pinned_to_a_version_that_fits(line):
    wanted = Requirement(line)
    assert PINS[canonicalize_name(wanted.name)] in wanted.specifier


def test_torch_is_one_version_everywhere():
    assert PINS["torch"] == "2.13.0"
    assert "torch==2.13.0" in PROJECT["dependencies"]
    assert "torch==2.13.0" in (ROOT / "Makefile").read_text()
    assert "torch==2.13.0" in (ROOT / "README.md").read_text()


def test_the_conda_file_has_the_right_shape():
    assert set(ENVIRONMENT) == {"name", "channels", "dependencies"}
    assert ENVIRONMENT["channels"] == ["conda-forge", "nodefaults"]
    lines = [line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)]
    for line in lines:
        rattler.MatchSpec(line, strict=False)
    assert {re.split(r"[=<>]", line)[0] for line in lines} == {"python", "pip", "make"}


def test_the_conda_file_installs_the_same_set_as_the_makefile():
    (pip,) = [part["pip"] for part in ENVIRONMENT["dependencies"] if isinstance(part, dict)]
    assert pip == ["--constraint constraints.txt", "torch==2.13.0", "--editable .[lab,dev]"]
    makefile = (ROOT / "Makefile").read_text()
    assert "--constraint constraints.txt --editable '.[lab,dev]'" in makefile


def test_the_tested_python_is_allowed():
    assert PROJECT["requires-python"] == ">=3.11"
    assert "python=3.11" in ENVIRONMENT["dependencies"]


def test_the_packages_that_the_project_is_asked_to_use_are_declared():
    names = {canonicalize_name(Requirement(line).name) for line in DECLARED}
    assert {"torch", "transformers", "datasets", "wandb", "snakemake", "pandas", "matplotlib", "scipy"} <= names
