"""One job a run. The row and the digest of the code that it reaches stand in params, so that an edit of either reruns it."""

for study in STUDIES:
    for keeps in (True, False):
        names = [row.run for row in PLAN[study] if row.keeps_versions is keeps]
        if not names:
            continue

        rule:
            name:
                f"run_{study}_versions" if keeps else f"run_{study}"
            input:
                run_inputs(study),
            output:
                expand(f"{run_folder(study, '{{run}}')}/{{file}}", file=RUN_FILES),
                [directory(f"{RESULTS}/versions/{study}/{{run}}")] if keeps else [],
            log:
                f"{RESULTS}/logs/{study}/{{run}}.log",
            wildcard_constraints:
                run="|".join(re.escape(name) for name in names),
            priority: 10 if keeps else 0
            conda:
                ENVIRONMENT
            threads: cores_of(study)
            resources:
                mem_mb=field_of(study, "memory_mb"),
                runtime=field_of(study, "minutes"),
                gpu=field_of(study, "gpus"),
            params:
                study=study,
                scale=SCALE,
                row=lambda wildcards, study=study: ROWS[
                    study, wildcards.run
                ].model_dump_json(exclude={"seconds"}),
                code=provenance.study_digest(study),
            shell:
                "thinwire-lab run {params.study} {wildcards.run:q} --scale {params.scale} 2> {log:q}"
