"""The memory ledger: parts that can be told from the plan, and what a step holds."""

from dataclasses import replace

import pytest

from thinwire.local import SCHEDULES, TrainingPlan, memory_ledger
from thinwire.models import ByteTransformerConfig

MODEL = ByteTransformerConfig(blocks=4, width=16, heads=2, context=16)
PLAN = TrainingPlan(model=MODEL, stages=2, steps=8, seed=5, staleness=1)
BLOCK = 12 * 16 * 16 * 4
TABLE = 256 * 16 * 4


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_has_a_ledger(name):
    ledger = memory_ledger(name, PLAN, 4)
    assert ledger["parameters"] >= 4 * BLOCK + 2 * TABLE
    assert ledger["moments"] >= 4 * BLOCK + 4 * TABLE
    assert ledger["activations"] > 0
    assert memory_ledger(name, PLAN, 8)["activations"] > 1.5 * ledger["activations"]


def test_parts_of_asynchronous_stages_follow_from_the_plan():
    ledger = memory_ledger("rgc_async", PLAN, 4)
    hidden, targets = 4 * 16 * 16 * 4, 4 * 16 * 8
    assert ledger["parameters"] == 4 * BLOCK + TABLE + 2 * TABLE
    assert ledger["moments"] == 4 * BLOCK + 4 * TABLE
    assert ledger["snapshots"] == 3 * TABLE
    assert ledger["rings"] == 3 * (hidden + targets + TABLE)
    longer = memory_ledger("rgc_async", replace(PLAN, staleness=4), 4)
    assert longer["snapshots"] == 6 * TABLE
    assert longer["activations"] == ledger["activations"]


def test_a_chain_of_products_holds_what_backward_needs():
    """Deeper models hold a block's activations more, whatever the number of processes."""
    per_block = [
        memory_ledger("global_backprop", replace(PLAN, model=replace(MODEL, blocks=n)), 4)["activations"]
        for n in (4, 8, 12)
    ]
    assert per_block[1] - per_block[0] == per_block[2] - per_block[1] > 10 * 4 * 16 * 16 * 4


def test_unknown_schedules_are_refused():
    with pytest.raises(ValueError, match="no schedule 'backprop'"):
        memory_ledger("backprop", PLAN, 4)
