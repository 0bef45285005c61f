"""Cutting blocks into stages: nothing lost, nothing twice, lengths within one."""

from hypothesis import given
from hypothesis import strategies as st

from thinwire.local.stages import cut


@given(st.integers(1, 200), st.data())
def test_cuts_cover_all_blocks_in_order_with_even_lengths(blocks, data):
    stages = data.draw(st.integers(1, blocks))
    spans = cut(blocks, stages)
    assert [i for span in spans for i in span] == list(range(blocks))
    lengths = [len(span) for span in spans]
    assert max(lengths) - min(lengths) <= 1
    assert len(spans) == stages
