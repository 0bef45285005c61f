"""From summaries to figures, and at laptop scale a copy beside each script."""

PUBLISHED_TABLES = sorted(str(path) for path in Path("configs/published").glob("*.csv"))


rule figures:
    input:
        FIGURE_FILES,
        PAPER_FIGURES,


rule figure:
    input:
        summaries=figure_inputs,
        published=PUBLISHED_TABLES,
        script="paper_figures/{figure}.py",
        style="paper_figures/paper.mplstyle",
    output:
        multiext(f"{RESULTS}/figures/{{figure}}", ".pdf", ".png"),
    log:
        f"{RESULTS}/logs/figures/{{figure}}.log",
    wildcard_constraints:
        figure="|".join(re.escape(figure) for figure in DRAWN) or "none",
    localrule: True
    conda:
        ENVIRONMENT
    params:
        code=provenance.source_digest(
            "thinwire_lab.analysis.plots", "thinwire_lab.analysis.noninferiority"
        ),
        scale=SCALE,
        folder=lambda wildcards, output: str(Path(output[0]).parent),
        summaries=f"{RESULTS}/summaries",
    shell:
        "python {input.script} --summaries {params.summaries} --published configs/published"
        " --scale {params.scale} --out {params.folder} 2> {log:q}"


if SCALE == "laptop":

    rule paper_figure:
        input:
            f"{RESULTS}/figures/{{drawing}}",
        output:
            "paper_figures/{drawing}",
        log:
            f"{RESULTS}/logs/figures/copy_{{drawing}}.log",
        wildcard_constraints:
            drawing=r"[a-z0-9_]+\.(pdf|png)",
        localrule: True
        conda:
            ENVIRONMENT
        shell:
            "cp {input:q} {output:q} 2> {log:q}"
