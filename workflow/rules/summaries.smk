"""From the runs of a study to its summaries."""

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
            scale=SCALE,
            measures=[
                measure.model_dump_json() for measure in load_study(study).measures
            ],
            code=provenance.source_digest("thinwire_lab.analysis.summarise"),
        shell:
            "thinwire-lab summarise {params.study} --scale {params.scale} 2> {log:q}"
