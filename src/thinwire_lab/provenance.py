"""Where a number comes from: the digest of the code that a study can reach, library versions, commit and machine.

The digest covers the syntax trees of every first-party module that an entry module imports, directly or through others,
with docstrings and comments left out. So an edit of a comment changes nothing, an edit of code changes the digest of
just the studies that reach it.
"""

import ast
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).resolve().parents[1]
"""The folder that holds both packages."""

PACKAGES = ("thinwire", "thinwire_lab")


def _path_of(module: str) -> Path | None:
    base = SOURCES.joinpath(*module.split("."))
    if (base / "__init__.py").is_file():
        return base / "__init__.py"
    file = base.with_suffix(".py")
    return file if file.is_file() else None


class _Bare(ast.NodeTransformer):
    """Takes docstrings out of a tree."""

    def _strip(self, node: Any) -> Any:
        self.generic_visit(node)
        body = node.body
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = body[1:] or [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _strip  # noqa: N815 - ast's own names


def tree_digest(source: str) -> str:
    """Digest of a module's syntax tree without docstrings, comments and layout (64 hexadecimal digits)."""
    return hashlib.sha256(ast.dump(_Bare().visit(ast.parse(source))).encode()).hexdigest()


def _imported(tree: ast.AST, module: str, is_package: bool) -> Iterable[str]:
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.cache
def _scan(module: str) -> tuple[str, frozenset[str], frozenset[str]]:
    """Tree digest, first-party modules imported and third-party top-level names imported."""
    path = _path_of(module)
    assert path is not None, module
    source = path.read_text(encoding="utf-8")
    first: set[str] = set()
    third: set[str] = set()
    for name in _imported(ast.parse(source), module, path.name == "__init__.py"):
        top = name.split(".")[0]
        if top not in PACKAGES:
            third.add(top)
            continue
        parts = name.split(".")
        prefixes = [".".join(parts[: end + 1]) for end in range(len(parts))]
        first.update(prefix for prefix in prefixes if _path_of(prefix) is not None)
    return tree_digest(source), frozenset(first - {module}), frozenset(third - set(sys.stdlib_module_names))


def reached(*entries: str) -> tuple[list[str], list[str]]:
    """First-party modules that the entry modules reach, and third-party top-level names among their imports, sorted.

    Raises ModuleNotFoundError for an entry that is no first-party module.
    """
    waiting, seen, third = list(entries), set[str](), set[str]()
    while waiting:
        module = waiting.pop()
        if module in seen:
            continue
        if _path_of(module) is None:
            raise ModuleNotFoundError(f"no first-party module {module!r} below the source folder")
        seen.add(module)
        _, first, others = _scan(module)
        third |= others
        waiting.extend(first)
    return sorted(seen), sorted(third)


@functools.cache
def _distributions() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def library_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the installed distributions that provide these top-level names, and Python's."""
    versions = {"python": platform.python_version()}
    for name in names:
        for distribution in _distributions().get(name, [])[:1]:
            versions[distribution.lower()] = importlib.metadata.version(distribution)
    return versions


def source_digest(*entries: str) -> str:
    """Digest (16 hexadecimal digits) of all that the entry modules reach: first-party trees and library versions."""
    modules, third = reached(*entries)
    lines = [f"{module} {_scan(module)[0]}" for module in modules]
    lines += [f"{name}=={version}" for name, version in sorted(library_versions(third).items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def study_digest(study: str) -> str:
    """Digest of all that a study's experiment reaches."""
    return source_digest(f"thinwire_lab.experiments.{study}")


def commit() -> str:
    """The commit of the work tree, with ``+changes`` when tracked files differ from it; empty outside git."""
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=SOURCES)
        dirty = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=no", "--", "src", "configs"],
            capture_output=True,
            text=True,
            check=True,
            cwd=SOURCES.parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def machine() -> dict[str, Any]:
    """CPU model, cores, memory in bytes, load averages and system."""
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        lines = info.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cpu": model, "cores": cores, "memory": memory, "load": list(os.getloadavg()), "system": platform.system()}


def origin(records: Iterable[Path]) -> dict[str, Any]:
    """What the runs behind a summary have in common, from their ``run.json``: digests, commits, libraries, machines.

    More than one source digest means that the runs were made by different code.
    """
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in records]
    return {
        "runs": len(runs),
        "source_digests": sorted({run["source_digest"] for run in runs}),
        "commits": sorted({run["commit"] for run in runs}),
        "libraries": sorted({f"{name}=={version}" for run in runs for name, version in run["libraries"].items()}),
        "machines": sorted({f"{run['machine']['cpu']}, {run['machine']['cores']} cores" for run in runs}),
        "seconds": sum(run["seconds"] for run in runs),
        "peak_memory_bytes": max(run["peak_memory_bytes"] for run in runs),
    }
