"""From the runs of a study to its summaries."""


def runs_of(study):
    return [
        f"{run_folder(row.study, row.run)}/{file}"
        for row in PLAN[study]
        for file in RUN_FILES
    ]


for study in STUDIES:

    rule:
        name:
            f"summarise_{study}"
        input:
            runs_of(study),
        output:
            expand(
                "{folder}/{table}",
                folder=f"{RESULTS}/summaries/{study}",
                table=SUMMARY_TABLES,
            ),
        log:
            f"{RESULTS}/logs/summarise_{study}.log",
        localrule: True
        conda:
            ENVIRONMENT
        params:
            study=study,
            measures=[
                measure.model_dump_json() for measure in load_study(study).measures
            ],
            code=provenance.source_digest("thinwire_lab.analysis.summarise"),
        shell:
            "{LAB} summarise {params.study} --scale {SCALE} 2> {log:q}"
