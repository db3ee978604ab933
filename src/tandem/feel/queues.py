"""The tandem queue: requests wait, are served, and become training data; the ages of data and models, in seconds."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.numerics import no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar

FRESH_AGE_S = 1.0  # the age the paper gives a new sample, and an emptied buffer


def next_queue(
    train: DeviceFlags, queue: PerDevice, arrived: PerDevice, queue_max: Scalar
) -> tuple[PerDevice, PerDevice]:
    """Q' = d if serving, Q + d if training; what does not fit in the queue is dropped. Returns Q' and the dropped."""
    wanted = jnp.where(train, queue, 0.0) + arrived
    held = jnp.minimum(wanted, queue_max)
    return held, wanted - held


def next_waited(train: DeviceFlags, waited_s: PerDevice, queue_after: PerDevice, duration_s: Scalar) -> PerDevice:
    """Request-seconds waited by those in the queue: Q L_wa, carried from round to round.

    Each request waits through every round from the one it arrives in, that one counted whole, until the round that
    serves it; so a round adds its length for every request in the queue at its end.
    """
    return jnp.where(train, waited_s, 0.0) + no_fma(queue_after * duration_s)


def waiting_time(waited_s: PerDevice, queue: PerDevice) -> PerDevice:
    """L_wa, the mean over the queue's requests of the time from their round of arrival until now."""
    return jnp.where(queue > 0, waited_s / jnp.where(queue > 0, queue, 1.0), 0.0)


def converted_data(samples_per_request: PerDevice, served: PerDevice) -> PerDevice:
    """F(Q): training samples from served requests, one-to-one, many-to-one or one-to-many."""
    return no_fma(samples_per_request * served)


def next_data(
    train: DeviceFlags, data: PerDevice, converted: PerDevice, data_limit: PerDevice
) -> tuple[PerDevice, PerDevice]:
    """D' = 0 after training, else D + F(Q) as far as the buffer admits. Returns D' and the samples admitted."""
    admitted = jnp.clip(data_limit - data, 0.0, converted)
    return jnp.where(train, 0.0, data + admitted), admitted


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
