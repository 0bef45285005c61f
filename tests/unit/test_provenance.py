"""The digest of what a study reaches: comments change nothing, code changes just the studies that reach it."""

import pytest

from thinwire_lab import provenance
from thinwire_lab.config import load_config

SOURCE = '''
"""A module."""

def double(x):
    """Twice x."""
    return 2 * x  # a comment
'''


def test_comments_docstrings_and_layout_change_no_digest():
    same = "def double(x):\n    return (\n        2 * x)\n"
    assert provenance.tree_digest(SOURCE) == provenance.tree_digest(same)


@pytest.mark.parametrize("edited", ["def double(x): return 3 * x", "def double(y): return 2 * y", "double = None"])
def test_code_changes_the_digest(edited):
    assert provenance.tree_digest(SOURCE) != provenance.tree_digest(edited)


def test_a_function_of_a_docstring_alone_is_not_an_empty_module():
    assert provenance.tree_digest('def f():\n    """Nothing."""') == provenance.tree_digest("def f(): pass")


def test_modules_are_reached_through_others():
    modules, third = provenance.reached("thinwire_lab.recorder")
    assert {"thinwire_lab.tables", "thinwire_lab.plan", "thinwire_lab.config", "thinwire_lab.provenance"} <= set(
        modules
    )
    assert not any(module.startswith("thinwire.") for module in modules)
    assert {"pydantic", "yaml", "wandb"} <= set(third)
    assert "json" not in third


def test_studies_reach_their_own_library_parts_only():
    reach = {study: set(provenance.reached(f"thinwire_lab.experiments.{study}")[0]) for study in load_config().studies}
    assert "thinwire.local.stages" in reach["local_learning"]
    assert "thinwire.local.stages" not in reach["weight_sync"]
    assert "thinwire.sync.publisher" in reach["weight_sync"]
    assert "thinwire.sync.publisher" not in reach["local_learning"]
    assert not any(module.startswith("thinwire_lab.analysis") for modules in reach.values() for module in modules)


def test_an_unknown_entry_is_refused():
    with pytest.raises(ModuleNotFoundError, match=r"no first-party module 'thinwire_lab\.absent'"):
        provenance.source_digest("thinwire_lab.absent")


def test_library_versions_are_those_installed():
    versions = provenance.library_versions(["torch", "no_such_library"])
    assert set(versions) == {"python", "torch"}
    assert versions["torch"].startswith("2.13.0")
