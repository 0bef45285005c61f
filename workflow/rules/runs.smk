"""One job a run. The row and the digest of the code that it reaches stand in params, so that an edit of either reruns it."""


def row_of(study):
    return lambda wildcards: ROWS[study, wildcards.run]


def run_inputs(study):
    assets = [ASSET_FILES[name] for name in load_study(study).assets_at(SCALE)]

    def inputs(wildcards):
        needed = ROWS[study, wildcards.run].needs.values()
        return assets + [f"{RESULTS}/versions/{source}/{run}" for source, run in needed]

    return inputs


def cores_of(study):
    """A timed row takes the whole machine, so that no other job spoils its stopwatch; a cluster's node is its own."""

    def threads(wildcards):
        row = ROWS[study, wildcards.run]
        return workflow.cores if row.timed and workflow.cores else row.threads

    return threads


def field_of(study, field):
    return lambda wildcards: getattr(ROWS[study, wildcards.run], field)


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
                cores=workflow.cores or 1,
                row=lambda wildcards, study=study: ROWS[
                    study, wildcards.run
                ].model_dump_json(exclude={"seconds"}),
                code=provenance.study_digest(study),
            shell:
                "{LAB} run {params.study} {wildcards.run:q} --scale {SCALE} --wandb {LAB_CONFIG.wandb}"
                " --cores {params.cores} 2> {log:q}"
