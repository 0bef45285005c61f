"""A short run of the fuzz target over the golden corpus: read or refused by name, the base never written."""

import importlib.util
import sys
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("fuzz_frames", Path(__file__).parents[1] / "fuzz" / "fuzz_frames.py")
assert _SPEC is not None
assert _SPEC.loader is not None
fuzz_frames = importlib.util.module_from_spec(_SPEC)


@pytest.fixture(scope="module", autouse=True)
def loaded():
    sys.modules["fuzz_frames"] = fuzz_frames
    _SPEC.loader.exec_module(fuzz_frames)
    yield
    del sys.modules["fuzz_frames"]


def test_harmed_frames_are_read_or_refused():
    tally = fuzz_frames.run(1, inputs=2000)
    assert tally.faults == []
    assert tally.tried == 2000
    assert tally.refused > 1000
    assert tally.read > 10  # some harm leaves a sound frame of other changes, so the readers are reached in full


def test_the_inputs_are_the_same_for_one_seed():
    first, again = (fuzz_frames.run(2, inputs=50) for _ in range(2))
    assert (first.read, first.refused) == (again.read, again.refused)
