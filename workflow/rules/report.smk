"""Verdicts and the report."""

ALL_TABLES = expand(
    "{results}/summaries/{study}/{table}",
    results=RESULTS,
    study=REPORTED,
    table=SUMMARY_TABLES,
)


rule judge:
    input:
        tables=ALL_TABLES,
        claims="configs/claims.yaml",
        studies=expand("configs/studies/{study}.yaml", study=REPORTED),
    output:
        f"{RESULTS}/claims.csv",
        f"{RESULTS}/bounds.csv",
        f"{RESULTS}/reaches.csv",
    log:
        f"{RESULTS}/logs/judge.log",
    localrule: True
    conda:
        ENVIRONMENT
    params:
        scale=SCALE,
        code=provenance.source_digest(
            "thinwire_lab.analysis.claims",
            "thinwire_lab.analysis.bounds",
            "thinwire_lab.analysis.reaches",
        ),
        studies=[provenance.study_digest(study) for study in REPORTED],
    shell:
        "thinwire-lab judge --scale {params.scale} 2> {log:q}"


rule report:
    input:
        tables=ALL_TABLES,
        claims=f"{RESULTS}/claims.csv",
        bounds=f"{RESULTS}/bounds.csv",
        reaches=f"{RESULTS}/reaches.csv",
        figures=FIGURE_FILES,
        pages=expand("docs/{study}.md", study=REPORTED),
        captions="configs/figures.yaml",
        studies=expand("configs/studies/{study}.yaml", study=REPORTED),
    output:
        f"{RESULTS}/report.html",
    log:
        f"{RESULTS}/logs/report.log",
    localrule: True
    conda:
        ENVIRONMENT
    params:
        scale=SCALE,
        code=provenance.source_digest("thinwire_lab.analysis.report"),
    shell:
        "thinwire-lab report --scale {params.scale} 2> {log:q}"
