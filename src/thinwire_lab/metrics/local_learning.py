"""What ``local_learning`` records.

Quality: ``step`` counts batches; scopes ``all``, ``segment_000`` ... and ``stage_0`` ... Throughput: ``step`` is the
repeat; scopes are the arms with workers and threads, ``global_backprop_1x2``, ``judged`` for the one that claims are
judged by, and the steps of the attribution. Memory: scopes are the arms, with the part in an account.
"""

from thinwire_lab.tables import Metric

METRICS = (
    Metric("bits_per_byte", "bit/B", "lower", description="loss of the trained model on the held-out part"),
    Metric("segment_bits_per_byte", "bit/B", "lower", description="the same, one held-out segment"),
    Metric("loss", "nats", description="training loss of the final stage (or of the whole model) on a batch"),
    Metric("bytes_trained", "B", description="bytes that were predicted in training"),
    Metric("state_digest", "1", description="first 52 bits of the digest of the trained weights"),
    Metric("readout_lag", "1", "lower", True, "readout updates that a stage's snapshot lacked, mean of its batches"),
    Metric("readout_lag_max", "1", "lower", True, "the same, the largest of all batches"),
    Metric("train_seconds", "s", "lower", True, "training without start and evaluation"),
    Metric("throughput", "B/s", "higher", True, "bytes trained a second, filling and emptying the pipeline included"),
    Metric("gain", "1", "higher", True, "throughput over the best thread count of global_backprop"),
    Metric("gain_over_groups", "1", "higher", True, "a local arm over the better of global_ddp and global_1f1b"),
    Metric("lead", "1", "higher", True, "a local arm over the best global arm"),
    Metric("share_of_limit", "1", "higher", True, "throughput over cores times that of one thread"),
    Metric("factor", "1", "higher", True, "what a step from one thread to the consensus changes"),
    Metric("peak_pss", "B", "lower", True, "peak PSS summed over the arm's processes, less process_floor"),
    Metric("peak_anonymous", "B", "lower", True, "anonymous part of the sum at its own peak, less the floor's"),
    Metric("peak_shared", "B", "lower", True, "shared-memory part of the sum at its own peak, less the floor's"),
    Metric("process_floor", "B", "lower", True, "the same of the same arm with a model of a few kilobytes"),
    Metric("in_use", "B", "lower", True, "the processes' own peaks with an allocator that returns what is freed"),
    Metric("ledger", "B", "lower", description="bytes of a part, by the arm's own account"),
    Metric("ledger_share", "1", "higher", True, "sum of the account over in_use"),
    Metric("memory_ratio", "1", "lower", True, "peak_pss of rgc_async over that of global_backprop"),
)
