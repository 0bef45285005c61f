"""What ``patch_codec`` records. ``step`` is the version that a patch leads to; the scope is the codec's name.

Bits, ``over_published`` and ``over_bound`` of a slice codec are about the slice: published codec and bound too.
"""

from thinwire_lab.tables import Metric

METRICS = (
    Metric("changed_share", "1", description="elements that a patch carries over all elements"),
    Metric("changed_weights", "1", description="elements whose bits differ between two consecutive versions"),
    Metric("codec_bytes", "B", "lower", description="bytes that a codec makes of a patch, all headers included"),
    Metric("bits_per_change", "bit", "lower", description="codec_bytes in bits over the changed weights"),
    Metric("payload_ratio", "1", "higher", description="full bytes over patch bytes of a version"),
    Metric("over_published", "1", "lower", description="codec_bytes over those of the published codec (zstd -1)"),
    Metric("over_bound", "1", "lower", description="bits_per_change over bound_bits"),
    Metric("bound_bits", "bit", description="conditional entropy of a change given the base's exponents"),
    Metric("bound_position_bits", "bit", description="the part of bound_bits that tells where"),
    Metric("bound_value_bits", "bit", description="the part of bound_bits that tells to what"),
    Metric("slice_bytes", "B", description="plain bytes of the tensors that the slice codecs are given"),
    Metric("slice_changed_weights", "1", description="changed weights in the slice"),
    Metric("slice_bound_bits", "bit", description="bound_bits of the slice alone"),
    Metric("anchor_share", "1", "lower", description="bytes of an anchor frame over the plain bytes of the weights"),
    Metric("round_trip", "1", "higher", description="1 when the receiver's state has the sender's digest, else 0"),
    Metric("encode_rate", "B/s", "higher", True, "bytes of weights a second: compare and encode, digests held"),
    Metric("decode_rate", "B/s", "higher", True, "bytes of weights a second: decode and apply in place, digests held"),
    Metric("equal_rate", "B/s", "higher", True, "bytes of weights a second: torch.equal on equal copies, same repeats"),
    Metric("encode_over_equal", "1", "higher", True, "encode_rate over equal_rate, paired by repeat"),
    Metric("decode_over_equal", "1", "higher", True, "decode_rate over equal_rate, paired by repeat"),
    Metric("equal_spread", "1", "neither", True, "highest less lowest equal_rate of the repeats, over the median"),
    Metric("encode_spread", "1", "neither", True, "the same of the ratio encode_over_equal"),
    Metric("decode_spread", "1", "neither", True, "the same of the ratio decode_over_equal"),
    Metric("decode_over_public", "1", "higher", True, "decode_rate over that of public_decode, paired by repeat"),
    Metric("extra_memory", "MiB", "lower", True, "peak growth of the resident size, less positions and new bits"),
    Metric("digest_rate", "B/s", "higher", True, "bytes of weights a second: state digest"),
)
