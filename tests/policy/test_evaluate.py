"""Many policies in parts: everybody's turn comes once, in few shapes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.policy.evaluate import padded_batches


@given(count=st.integers(1, 300), at_once=st.integers(1, 64), fewest=st.sampled_from([1, 8]))
def test_parts_hold_everybody_once_in_one_shape(count: int, at_once: int, fewest: int) -> None:
    parts = list(padded_batches(count, at_once, fewest))
    np.testing.assert_array_equal(np.concatenate([who[:counted] for who, counted in parts]), np.arange(count))
    (length,) = {len(who) for who, _ in parts}
    assert min(count, at_once) <= length <= at_once
    assert length == at_once or length in (1, 2, 4, 8, 16, 32)
