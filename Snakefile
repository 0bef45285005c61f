"""Contents page: what can be made, and where each part of the way stands.

    snakemake reproduce-all                 every study at the scale of configs/config.yaml (laptop)
    snakemake update_sparsity               one study with what it needs; likewise each other study's name
    snakemake figures | report              drawings, or the report with the verdicts
    snakemake --config scale=smoke ...      the same, tiny

With ``--config from_summaries=true`` no run is planned and the committed summaries are the sources.
"""

import fcntl

LOCKS = []  # held open as long as this workflow lives


configfile: "configs/config.yaml"


include: "workflow/rules/common.smk"


if not FROM_SUMMARIES:

    include: "workflow/rules/assets.smk"
    include: "workflow/rules/runs.smk"
    include: "workflow/rules/summaries.smk"


include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"


rule:
    name:
        "reproduce-all"
    default_target: True
    input:
        all_records,
        f"{RESULTS}/claims.csv",
        f"{RESULTS}/report.html",
        FIGURE_FILES,
        PAPER_FIGURES,


for study in STUDIES:

    rule:
        name:
            study
        input:
            expand(
                "{folder}/{table}",
                folder=f"{RESULTS}/summaries/{study}",
                table=SUMMARY_TABLES,
            ),
            [file for figure in figures_of(study) for file in figure_files(figure)],


onstart:
    # The kernel frees this lock when its holder ends, however it ends: a killed workflow needs no unlocking.
    Path(".snakemake").mkdir(exist_ok=True)
    LOCKS.append(open(f".snakemake/thinwire-{SCALE}.lock", "w"))
    try:
        fcntl.flock(LOCKS[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(
            f"thinwire: another workflow is at {RESULTS}; wait for it or end it"
        )
    os.environ.update(THINWIRE_CORES=str(workflow.cores or 1))
    if ROWS:
        print(
            f"thinwire: scale {SCALE}: {progress.sentence(list(ROWS.values()), Path(RESULTS), workflow.cores or 1)}"
        )


onerror:
    print(
        f"thinwire: some runs failed; the lines above name each with its log. Finished runs are kept: call again to resume."
    )
