"""What an experiment is handed: where its inputs are, and where its measurements go.

The files that :meth:`Recorder.finish` writes are the source of truth. wandb, where it is on, is a mirror of them: one
group a study, tags from the grid; with wandb off nothing changes in any table.
"""

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

from thinwire_lab import provenance
from thinwire_lab.plan import Row
from thinwire_lab.tables import METRICS, RUN_COLUMNS, write_rows, write_text


class Recorder:
    """Collects the rows of one run and writes its ``metrics.csv``, ``clock.csv`` and ``run.json`` at the end."""

    def __init__(
        self, row: Row, out: Path, *, assets: Path, inputs: dict[str, Path], versions: Path | None, wandb: str
    ) -> None:
        """Start the clock of a run whose files go to ``out``; ``wandb`` is disabled, offline or online."""
        self.row = row
        self.assets = assets
        self.inputs = inputs
        self.versions = versions
        self._out = out
        self._rows: list[tuple[int, str, str, float]] = []
        self._notes: dict[str, Any] = {}
        self._began = time.monotonic()
        self._said = self._began
        self._run: Any = self._mirror(wandb) if wandb != "disabled" else None

    @property
    def seed(self) -> int:
        """Seed of the run's generators."""
        return self.row.seed

    @property
    def threads(self) -> int:
        """Cores that the run takes, all its processes together."""
        return self.row.threads

    def record(self, step: int, metric: str, value: float, scope: str = "all") -> None:
        """Add a row. Raises KeyError for an undeclared metric and ValueError for a value that is not finite."""
        METRICS[metric]
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"{metric} at step {step} ({scope}) is {number}: only finite values can be recorded")
        self._rows.append((int(step), scope, metric, number))
        if self._run is not None:
            self._run.log({"step": step, metric if scope == "all" else f"{scope}/{metric}": number})

    def note(self, key: str, value: Any) -> None:
        """Add a JSON value to ``run.json`` under ``notes``."""
        json.dumps(value)
        self._notes[key] = value

    def progress(self, done: int, total: int) -> None:
        """Tell the log how far the run is, every ten seconds at most."""
        now = time.monotonic()
        if now - self._said < 10 and done < total:
            return
        self._said = now
        left = (now - self._began) / max(done, 1) * (total - done)
        print(
            f"{self.row.study} {self.row.run}: {done} of {total}, about {left:.0f} s left", file=sys.stderr, flush=True
        )

    def finish(self) -> None:
        """Write the run's files, each whole or not at all; ``run.json`` comes last."""
        to_clock = [self.row.asynchronous or METRICS[metric].clock for _, _, metric, _ in self._rows]
        for name, clock in (("metrics.csv", False), ("clock.csv", True)):
            rows = [row for row, is_clock in zip(self._rows, to_clock, strict=True) if is_clock is clock]
            write_rows(self._out / name, RUN_COLUMNS, rows)
        _, third = provenance.reached(f"thinwire_lab.experiments.{self.row.study}")
        peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        write_text(
            self._out / "run.json",
            json.dumps(
                {
                    "row": self.row.model_dump(mode="json"),
                    "source_digest": provenance.study_digest(self.row.study),
                    "commit": provenance.commit(),
                    "libraries": provenance.library_versions(third),
                    "machine": provenance.machine(),
                    "seconds": time.monotonic() - self._began,
                    "peak_memory_bytes": peak * 1024,
                    "notes": self._notes,
                },
                indent=1,
            )
            + "\n",
        )
        if self._run is not None:
            self._run.finish()

    def _mirror(self, mode: str) -> Any:
        os.environ.setdefault("WANDB_SILENT", "true")
        import wandb  # noqa: PLC0415 - half a second that only a mirrored run pays

        row = self.row
        run = wandb.init(
            project="thinwire",
            mode=mode,  # type: ignore[arg-type]
            dir=str(self._out),
            group=row.study,
            name=row.run,
            id=f"{row.scale}-{row.study}-{row.run}".replace("=", "-").replace(",", "-"),
            resume="allow",
            tags=[row.scale, *row.cell.split(",")] if row.cell else [row.scale],
            config={**row.config, "seed": row.seed, "scale": row.scale, "threads": row.threads},
        )
        run.define_metric("*", step_metric="step")
        return run
