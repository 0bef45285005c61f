"""What ``outer_rounds`` records, by round (0 is before the first). Scopes: ``trainer0``, ``trainer1``, ...; ``all``.

A round is H inner steps of each trainer; for the arm ddp it is H steps, each with its exchange.
"""

from thinwire_lab.tables import Metric

METRICS = (
    Metric("round_bytes", "B", "lower", description="payload that one trainer sends in a round, counted once"),
    Metric("round_link_bytes", "B", "lower", description="bytes that one trainer puts on its link in a round"),
    Metric("sent_share", "1", "lower", description="share of the entries that one trainer sends in an exchange"),
    Metric("diloco_over_sent", "1", "higher", description="bytes of a dense FP32 pseudo-gradient over round_bytes"),
    Metric("ddp_over_sent", "1", "higher", description="bytes of the FP32 gradients of H steps over round_bytes"),
    Metric("reward", "1", "higher", description="mean reward of a round's answers: the share that is right"),
    Metric("loss", "nats", description="mean training loss of a round's steps"),
    Metric(
        "has_advantage", "1", description="share of a round's steps in which some group's answers earned unlike rewards"
    ),
    Metric("validation_bits_per_byte", "bit/B", "lower", description="held-out loss of the shared weights"),
    Metric("state_digest", "1", description="first 52 bits of the digest of the shared FP32 weights"),
    Metric("exchange_seconds", "s", "lower", True, "a round's exchanges on the slowest trainer, encoding included"),
)
