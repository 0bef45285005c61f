"""The computed scaling model and the names of arms in figures."""

import math

import pandas as pd
import pytest

from thinwire_lab.analysis.local_arms import compared, speed_title, title, with_arms
from thinwire_lab.analysis.scaling import fit, ratio_of_stages


def test_fit_passes_through_both_rates():
    fitted = fit(100.0, 160.0, 2)
    assert fitted.rate(1) == pytest.approx(100.0)
    assert fitted.rate(2) == pytest.approx(160.0)
    assert fitted.rate(1000) < 1 / fitted.serial
    assert fitted.rate(1, 0.25) == pytest.approx(400.0)


def test_perfect_groups_leave_only_the_count_of_threads():
    assert ratio_of_stages(fit(100, 200, 2), 1.0, stages=4, threads=7, global_threads=24) == pytest.approx(28 / 24)


def test_groups_that_scale_badly_leave_more_to_small_groups():
    ratios = [
        ratio_of_stages(fit(100, wide, 2), 0.9, stages=4, threads=7, global_threads=24) for wide in (200, 180, 140, 100)
    ]
    assert ratios == sorted(ratios)
    assert ratios[-1] == pytest.approx(0.9 * 4)


def test_rates_beyond_the_model_are_taken_at_its_ends():
    assert fit(100, 230, 2).serial == 0
    assert fit(100, 70, 2).parallel == 0
    for wrong in ((100, 160, 1), (0, 160, 2), (100, -1, 2)):
        with pytest.raises(ValueError, match="a fit needs"):
            fit(*wrong)


def test_arms_are_named_by_schedule_and_by_what_sets_a_variant_apart():
    table = pd.DataFrame(
        {"arm": ["rgc_async", "rgc_async", "global_backprop"], "stages": [math.nan, "2", math.nan], "steps": [None] * 3}
    )
    shown = list(with_arms(table)["shown"])
    assert shown == ["rgc_async", "rgc_async, 2 stages", "global_backprop"]
    assert [title(name) for name in shown] == ["RGC, async", "RGC, async, 2 stages", "global"]
    assert speed_title("rgc_async_2x1_staleness_0") == "RGC, async, 2 x 1, staleness 0"
    assert speed_title("global_ddp_4x7") == "data-parallel, 4 x 7"


def test_an_arm_is_compared_with_global_training_of_its_length():
    shown = ["global_backprop", "global_backprop, 205 batches", "global_backprop, 660 batches", "rgc_sync"]
    longer = "rgc_async, 2 stages, staleness 0, 660 batches"
    assert compared([*shown, longer]) == [
        ("rgc_sync", "global_backprop"),
        (longer, "global_backprop, 660 batches"),
    ]
    assert compared([longer]) == []
