"""What ``weight_sync`` records. Scopes: ``trainer`` and ``worker``; ``full`` and ``patch``; an encoding's name."""

from thinwire_lab.tables import Metric

METRICS = (
    Metric("reward", "1", "higher", description="mean reward of a step's answers: the share that is right"),
    Metric("loss", "nats", description="DAPO token-level loss of a step"),
    Metric("has_advantage", "1", description="1 when some group's answers earned unlike rewards"),
    Metric("state_digest", "1", description="first 52 bits of the state digest of a version"),
    Metric("frame_bytes", "B", "lower", description="bytes of the frame that moved a version"),
    Metric("full_bytes", "B", description="bytes of all tensors of a version, uncoded"),
    Metric("changed_share", "1", description="elements that a patch carries over all elements"),
    Metric("payload_ratio", "1", "higher", description="full bytes over patch bytes of a version"),
    Metric("versions_without_change", "1", description="kept versions equal to the one before, left out of the link"),
    Metric("digest_checks", "1", description="versions whose digest was compared at the receiver"),
    Metric("digest_mismatches", "1", "lower", description="versions that differed from the trainer's"),
    Metric("publish_seconds", "s", "lower", True, "trainer: compare, encode, write, flush and commit a version"),
    Metric("pull_seconds", "s", "lower", True, "receiver: transfer, decode, apply and verify a version"),
    Metric("rollout_seconds", "s", "lower", True, "sample and score a step's answers"),
    Metric("train_seconds", "s", "lower", True, "loss, gradient and optimizer step"),
    Metric("encode_seconds", "s", "lower", True, "trainer: compare and encode a version into memory"),
    Metric("apply_seconds", "s", "lower", True, "receiver: decode, apply and verify a version without a link"),
    Metric("pull_ratio", "1", "higher", True, "pull seconds of full weights over those of the patch, same version"),
    Metric("compute_seconds", "s", "neither", True, "work between two versions, of a published batch"),
    Metric("utilisation_limit", "1", "higher", True, "busy share of a worker on an infinitely fast link"),
    Metric("utilisation", "1", "higher", True, "busy share of a worker on the shaped link"),
    Metric("bandwidth_90", "bit/s", "lower", True, "link at which workers are 90 % busy"),
    Metric("bandwidth_ratio", "1", "higher", True, "bandwidth_90 of full weights over that of patches"),
)
