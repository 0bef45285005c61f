"""How far the workflow is and about how long it still takes, read from the plan and the finished runs' records."""

import json
from pathlib import Path

from thinwire_lab.plan import Row


def _record(results: Path, row: Row) -> Path:
    return results / "runs" / row.study / row.run / "run.json"


def _core_seconds(row: Row, cores: int) -> float:
    return row.seconds * (cores if row.timed else min(row.threads, cores))


def outlook(rows: list[Row], results: Path, cores: int) -> tuple[int, int, float]:
    """Runs finished, runs in all, and the expected seconds left on ``cores`` cores.

    The study files' expectations are scaled by the ratio of measured to expected seconds of the finished runs.
    """
    done = [row for row in rows if _record(results, row).is_file()]
    expected = sum(_core_seconds(row, cores) for row in done)
    measured = 0.0
    for row in done:
        seconds = json.loads(_record(results, row).read_text(encoding="utf-8"))["seconds"]
        measured += float(seconds) * (cores if row.timed else min(row.threads, cores))
    pace = measured / expected if expected else 1.0
    left = sum(_core_seconds(row, cores) for row in rows) - expected
    return len(done), len(rows), pace * left / cores


def sentence(rows: list[Row], results: Path, cores: int) -> str:
    """``12 of 61 runs finished, about 14 min left``."""
    done, total, seconds = outlook(rows, results, cores)
    left = f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"
    return f"{done} of {total} runs finished, {left if done < total else 'all runs done'}"
