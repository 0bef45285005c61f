"""What ``update_sparsity`` records, by optimizer step; scopes: ``all`` and the tensor groups.

Step 1 is the first with the full learning rate; the warm-up's steps have numbers of 0 and below.
"""

from thinwire_lab.tables import Metric

LAGS = (1, 2, 4, 8)
"""The k of the k-step sparsities S_k."""

METRICS = (
    *(
        Metric(
            f"sparsity_{k}",
            "1",
            description=f"share of BF16 weights with equal bits {k} optimizer steps apart (end points)",
        )
        for k in LAGS
    ),
    Metric("gradient_density", "1", description="share of gradient entries that are not zero"),
    Metric("reward", "1", "higher", description="mean reward of a step's answers: the share that is right"),
    Metric("loss", "nats", description="DAPO token-level loss of a step"),
    Metric("grad_norm", "1", description="norm of all gradients before clipping"),
    Metric("learning_rate", "1", description="learning rate of a step, 0 where there was no update"),
    Metric("has_advantage", "1", description="1 when some group's answers earned unlike rewards"),
    Metric(
        "steps_without_advantage", "1", description="steps that taught nothing and made no update, of the whole run"
    ),
    Metric("state_digest", "1", description="first 52 bits of the state digest of a version"),
    Metric("rollout_seconds", "s", "lower", True, "sample and score a step's answers"),
    Metric("train_seconds", "s", "lower", True, "loss, gradient and optimizer step"),
)
