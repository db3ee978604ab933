"""Arithmetic that rounds the same however the program is batched: one fleet steps to the same bits among thousands.

A compiler has three freedoms that it uses differently for different batch sizes. It may add up an array in any order: a
fixed tree of additions leaves it no choice. It may compute a * b + c with one rounding or with two, as the operations
happen to fall together: a product that will be added to something is ``rounded`` first. And it may turn a division by
what all fleets share into a multiplication: constants divide as ``jnp.reciprocal``, which is that multiplication.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike

from tandem.feel.types import Array, DeviceFlags, PerDevice, RandomKey, Scalar


def no_fma(product: Array) -> Array:
    """The product as it is, but for a compiler that would fuse it with a following addition."""
    return jnp.minimum(product, np.finfo(product.dtype).max)


def fleet_sum(values: PerDevice) -> Scalar:
    """The sum over devices, halves added to halves."""
    size = values.shape[0]
    while size > 1:
        half = (size + 1) // 2
        upper = values[half:size]
        values = jnp.concatenate([values[: size - half] + upper, values[size - half : half]])
        size = half
    return values[0]


def fleet_mean(values: PerDevice) -> Scalar:
    """The mean over devices."""
    return fleet_sum(values) / values.shape[0]


def fleet_max(values: PerDevice, where: DeviceFlags) -> Scalar:
    """The largest value among the devices ``where`` holds, 0 if there are none."""
    return jnp.max(values, initial=0.0, where=where)


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
