"""Random numbers, sparingly: drawing them is the larger part of a simulated round."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jaxtyping import DTypeLike

from tandem.feel.types import PerDevice, RandomKey


def packed_uniforms(key: RandomKey, size: int, bits: Sequence[int], dtype: DTypeLike) -> list[PerDevice]:
    """Several uniform numbers in (0, 1) for each device, cut from one random word of 32 bits.

    A number of b bits is the middle of one of 2^b equal cells. Device n's word does not depend on the fleet's size.
    """
    assert sum(bits) <= 32
    word = jax.random.bits(key, (size,))
    numbers = []
    for width in bits:
        numbers.append(((word & (2**width - 1)).astype(dtype) + 0.5) / 2**width)
        word >>= width
    return numbers
