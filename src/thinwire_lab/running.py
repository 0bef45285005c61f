"""One run, from its row to its files: threads, lock, watch over the caller, errors that say where to look.

A run never leaves half a table. It writes to temporary names, ends itself when the Snakemake that started it is gone,
and waits for a copy of itself that has not ended yet, so that a killed workflow can be started again at once.
"""

import fcntl
import importlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from thinwire_lab.config import ConfigError, Scale
from thinwire_lab.plan import Row, plan_all
from thinwire_lab.recorder import Recorder


def find_row(study: str, run: str, scale: str, studies: list[str]) -> Row:
    """The planned row of that name. Raises ConfigError when the study does not plan it at this scale."""
    for row in plan_all(studies, scale)[study]:  # type: ignore[arg-type]
        if row.run == run:
            return row
    raise ConfigError(f"configs/studies/{study}.yaml plans no run {run!r} at scale {scale}")


def _callers() -> list[psutil.Process]:
    """Ancestors that are Snakemake processes."""
    found = []
    for ancestor in psutil.Process().parents():
        try:
            if any("snakemake" in Path(word).name for word in ancestor.cmdline()[:3]):
                found.append(ancestor)
        except psutil.Error:
            continue
    return found


def end_with_caller(interval: float = 0.5) -> None:
    """Watch the Snakemake processes above this one, if any, and end this process once one of them is gone.

    A kill of Snakemake leaves its shell and this process alive; nobody would read what they still write.
    """
    callers = _callers()
    if not callers:
        return

    def watch() -> None:
        while all(caller.is_running() and caller.status() != psutil.STATUS_ZOMBIE for caller in callers):
            time.sleep(interval)
        print("the workflow that started this run is gone; it ends too", file=sys.stderr, flush=True)
        os._exit(1)

    def guarded() -> None:
        try:
            watch()
        except psutil.NoSuchProcess:
            os._exit(1)

    threading.Thread(target=guarded, daemon=True, name="end-with-caller").start()


@contextmanager
def only_one(path: Path, patience: float = 60.0) -> Iterator[None]:
    """Hold a lock file that the kernel frees when its holder ends.

    Raises ConfigError when another process still holds it after ``patience`` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as lock:
        deadline = time.monotonic() + patience
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(f"{path}: another process is at this; wait for it or end it") from None
                time.sleep(0.2)
        yield


def _prepare(threads: int, scale: Scale) -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
        os.environ[name] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    if scale != "paper":  # nothing is fetched from a hub
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
            os.environ.setdefault(name, "1")
    import torch  # noqa: PLC0415 - after the environment is set

    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    # only uninitialised reads could differ by this, and nothing reads what it has not written
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def run_row(row: Row, results: Path, *, assets: Path, wandb: str) -> None:
    """Run one row and write ``runs/STUDY/RUN`` (and ``versions/STUDY/RUN``) below ``results``.

    Whatever the experiment raises is passed on; no file of the run is left then.
    """
    out = results / "runs" / row.study / row.run
    kept = results / "versions" / row.study / row.run
    staging = kept.with_name(f".{kept.name}.part")
    with only_one(results / "logs" / row.study / f"{row.run}.lock"):
        _prepare(row.threads, row.scale)
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        if row.keeps_versions:
            staging.mkdir(parents=True)
        inputs = {name: results / "versions" / study / run for name, (study, run) in row.needs.items()}
        for name, folder in inputs.items():
            if not folder.is_dir():
                raise ConfigError(f"{row.study} {row.run}: input {name}: no folder {folder}; run that row first")
        module = importlib.import_module(f"thinwire_lab.experiments.{row.study}")
        record = Recorder(
            row, out, assets=assets, inputs=inputs, versions=staging if row.keeps_versions else None, wandb=wandb
        )
        try:
            module.run(module.Config.model_validate(row.config), record)
            if row.keeps_versions:
                shutil.rmtree(kept, ignore_errors=True)
                staging.replace(kept)
            record.finish()
        finally:
            shutil.rmtree(staging, ignore_errors=True)
