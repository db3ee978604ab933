"""How old the training data and the models are, in seconds."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.numerics import no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar

FRESH_AGE_S = 1.0  # the age the paper gives a new sample, and an emptied buffer


def next_data_age(
    train: DeviceFlags, data_age_s: PerDevice, data: PerDevice, admitted: PerDevice, duration_s: Scalar
) -> PerDevice:
    """Age of data: ((Delta + L) D + F(Q)) / D' if serving, 1 after training (and for an empty buffer)."""
    total = data + admitted
    age_of_all = no_fma((data_age_s + duration_s) * data) + FRESH_AGE_S * admitted
    mixed = age_of_all / jnp.where(total > 0, total, 1.0)
    return jnp.where(train | (total <= 0), FRESH_AGE_S, mixed)


def next_model_age(trained: DeviceFlags, model_age_s: PerDevice, duration_s: Scalar) -> PerDevice:
    """Age of model: delta' = (delta + L)(1 - alpha)."""
    return jnp.where(trained, 0.0, model_age_s + duration_s)
