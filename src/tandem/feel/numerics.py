"""Arithmetic that rounds the same for every batch size: a fleet steps to the same bits alone and among thousands.

The compiler may make three choices that depend on the batch size. It may sum an array in any order: ``fleet_sum`` uses
a fixed tree of additions. It may compute a * b + c with one rounding or with two, depending on how it fuses the
operations: ``no_fma`` is applied to a product before an addition. It may replace a division by a value that all fleets
share by a multiplication: divisions by constants are written as multiplications by ``jnp.reciprocal``.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import DTypeLike

from tandem.feel.types import Array, DeviceFlags, PerDevice, RandomKey, Scalar


def no_fma(product: Array) -> Array:
    """Return the product unchanged, in a form that the compiler cannot fuse with a following addition."""
    return jnp.minimum(product, np.finfo(product.dtype).max)


def fleet_sum(values: PerDevice) -> Scalar:
    """Compute the sum over devices, by adding the upper half to the lower half repeatedly."""
    size = values.shape[0]
    while size > 1:
        half = (size + 1) // 2
        upper = values[half:size]
        values = jnp.concatenate([values[: size - half] + upper, values[size - half : half]])
        size = half
    return values[0]


def fleet_mean(values: PerDevice) -> Scalar:
    """Compute the mean over devices."""
    return fleet_sum(values) / values.shape[0]


def fleet_max(values: PerDevice, where: DeviceFlags) -> Scalar:
    """Return the largest value among the devices in ``where``; 0 if there are none."""
    return jnp.max(values, initial=0.0, where=where)


def packed_uniforms(key: RandomKey, size: int, bits: Sequence[int], dtype: DTypeLike) -> list[PerDevice]:
    """Draw several uniform numbers in (0, 1) for each device from one random word of 32 bits.

    A number of b bits is the middle of one of 2^b equal cells. Device n's word does not depend on the fleet's size.
    """
    assert sum(bits) <= 32
    word = jax.random.bits(key, (size,))
    numbers = []
    for width in bits:
        numbers.append(((word & (2**width - 1)).astype(dtype) + 0.5) / 2**width)
        word >>= width
    return numbers
