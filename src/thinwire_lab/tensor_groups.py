"""The groups by which weights are reported: what a tensor's name says about its place in the model."""

GROUPS = ("embedding", "attention", "mlp", "norm")


def group_of(name: str) -> str:
    """Return which of ``GROUPS`` a tensor of a transformers checkpoint belongs to (an untied head counts as
    embedding)."""
    if "embed" in name or "lm_head" in name:
        return "embedding"
    if "norm" in name:
        return "norm"
    return "attention" if "attn" in name else "mlp"
