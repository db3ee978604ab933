"""Sums over a fleet whose rounding does not depend on how the program is batched.

A compiler may add up an array in any order, and picks another order for another batch size. A fixed tree of additions
leaves it no choice, so one fleet steps to the same bits alone and among thousands.
"""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.types import DeviceFlags, PerDevice, Scalar


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
