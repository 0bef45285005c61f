"""The way is downhill: which module may import which, how large files may grow, and which names say nothing."""

import ast
import re

import pytest

from thinwire_lab.provenance import SOURCES

ROOT = SOURCES.parent
MODULES = {
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("thinwire", "thinwire_lab")
    for path in (SOURCES / package).rglob("*.py")
}

BESIDE_PATCH = {"patch", "models", "muon", "data", "tasks", "gate", "forecast", "spawn", "pretrained"}
LIBRARY_FLOOR = dict.fromkeys(BESIDE_PATCH, 0) | {
    "sync": 1,
    "train": 2,
    "outer": 2,
    "local": 2,
    "checkpoint": 2,
    "integrations": 3,
    "cli": 3,
}
LAB_FLOOR = {
    "config": 0, "tables": 0, "plan": 1, "metrics": 1, "provenance": 0, "progress": 2, "recorder": 2, "assets": 2,
    "tensor_groups": 0, "text_places": 0, "statistics": 0, "preregistration": 2,
    "running": 3, "experiments": 4, "analysis": 4, "cli": 5,
}  # fmt: skip
BANNED = {"utils", "helpers", "common", "misc", "manager", "handler", "delta", "new", "final", "v2", "tmp", "toy"}


def imports(path, module):
    """Modules that a file imports, wherever in it, as absolute names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module


def floor(module):
    top, _, rest = module.partition(".")
    part = rest.split(".")[0]
    if not part:
        return -1
    table = LIBRARY_FLOOR if top == "thinwire" else LAB_FLOOR
    assert part in table, f"{module} stands on no floor: give {part!r} one in this test and in docs/ARCHITECTURE.md"
    return table[part]


def part_of(module):
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_lower_floors(module):
    for name in imports(MODULES[module], module):
        if not name.startswith(("thinwire.", "thinwire_lab.")):
            continue
        assert not (module.startswith("thinwire.") and name.startswith("thinwire_lab")), f"{module} imports {name}"
        if module.split(".")[0] != name.split(".")[0] or part_of(module) == part_of(name):
            continue
        if part_of(module) in BESIDE_PATCH and module.startswith("thinwire."):
            assert False, f"{module} imports {name}: nothing beside patch imports from the library"  # noqa: B011, PT015
        assert floor(name) < floor(module) or {part_of(module), part_of(name)} == {"tables", "metrics"}, (
            f"{module} imports {name}"
        )


def test_the_two_wings_meet_in_files_only():
    for module, path in MODULES.items():
        names = set(imports(path, module))
        if module.startswith("thinwire_lab.analysis"):
            assert not any(name.split(".")[0] in ("thinwire", "torch") for name in names), module
            assert not any(name.startswith("thinwire_lab.experiments") for name in names), module
        if module.startswith("thinwire_lab.experiments"):
            assert not any(name.startswith("thinwire_lab.analysis") for name in names), module


def test_only_the_recorder_imports_wandb():
    users = [
        module for module, path in MODULES.items() if "wandb" in {name.split(".")[0] for name in imports(path, module)}
    ]
    assert users == ["thinwire_lab.recorder"]


def test_what_the_workflow_imports_needs_no_torch():
    for part in ("config", "plan", "tables", "provenance", "progress"):
        path = MODULES[f"thinwire_lab.{part}"]
        assert "torch" not in {name.split(".")[0] for name in imports(path, part)}


@pytest.mark.parametrize("package", ["thinwire", "thinwire_lab"])
def test_the_root_packages_import_nothing(package):
    assert not list(imports(MODULES[package], package))


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_and_functions_are_small_enough_to_hold(module):
    source = MODULES[module].read_text(encoding="utf-8")
    assert source.count("\n") <= 400, f"{module} is too long"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 70, f"{module}.{node.name} is too long"


def test_no_name_says_nothing():
    for module, path in MODULES.items():
        names = set(module.split("."))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
                assert not node.name.startswith(("process_", "do_")), f"{module}: {node.name}"
        assert not {name.lower().strip("_") for name in names} & BANNED, module


def test_the_project_speaks_of_itself_alone():
    foreign = re.compile(
        r"/(work|tmp|root|home|opt)/|pypi\.org|download\.pytorch|\bsession \d|\bissue #?\d", re.IGNORECASE
    )
    files = [
        path
        for folder in ("src", "docs", "configs", "workflow", "paper_figures")
        for path in (ROOT / folder).rglob("*")
    ]
    files += [ROOT / "README.md", ROOT / "Makefile", ROOT / "Snakefile"]
    for path in files:
        if path.suffix in {".py", ".md", ".yaml", ".smk", ".csv", ""} and path.is_file():
            found = foreign.search(path.read_text(encoding="utf-8"))
            assert not found, f"{path}: {found.group()}"


def test_nothing_from_outside_is_unpickled():
    for module, path in MODULES.items():
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"\b(pickle|(?<!safetensors\.)torch\.load|np\.load|joblib|dill)\b", source), module
