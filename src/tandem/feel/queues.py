"""The tandem queue: requests wait, are served, and become training data; the ages of data and models, in seconds."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.numerics import no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar

FRESH_AGE_S = 1.0  # the age the paper gives a new sample, and an emptied buffer


def next_queue(
    train: DeviceFlags, queue: PerDevice, arrived: PerDevice, queue_max: Scalar
) -> tuple[PerDevice, PerDevice]:
    """Compute Q' = d if serving, Q + d if training, up to the queue's capacity. Returns Q' and the requests dropped."""
    wanted = jnp.where(train, queue, 0.0) + arrived
    held = jnp.minimum(wanted, queue_max)
    return held, wanted - held


def next_waited(train: DeviceFlags, waited_s: PerDevice, queue_after: PerDevice, duration_s: Scalar) -> PerDevice:
    """Update Q L_wa, the request-seconds that the requests in the queue have waited.

    A request waits from the round in which it arrives, which counts in full, until the round that serves it. So each
    round adds its duration for every request in the queue at its end.
    """
    return jnp.where(train, waited_s, 0.0) + no_fma(queue_after * duration_s)


def waiting_time(waited_s: PerDevice, queue: PerDevice) -> PerDevice:
    """Compute L_wa, the mean time since the round of arrival over the requests in the queue."""
    return jnp.where(queue > 0, waited_s / jnp.where(queue > 0, queue, 1.0), 0.0)


def converted_data(samples_per_request: PerDevice, served: PerDevice) -> PerDevice:
    """Compute F(Q), the training samples from served requests: one-to-one, many-to-one or one-to-many."""
    return no_fma(samples_per_request * served)


def next_data(
    train: DeviceFlags, data: PerDevice, converted: PerDevice, data_limit: PerDevice
) -> tuple[PerDevice, PerDevice]:
    """Compute D' = 0 after training, else D + F(Q) up to the buffer's limit. Returns D' and the samples admitted."""
    admitted = jnp.clip(data_limit - data, 0.0, converted)
    return jnp.where(train, 0.0, data + admitted), admitted


def next_data_age(
    train: DeviceFlags, data_age_s: PerDevice, data: PerDevice, admitted: PerDevice, duration_s: Scalar
) -> PerDevice:
    """Compute the age of data: ((Delta + L) D + F(Q)) / D' if serving, 1 after training (and for an empty buffer)."""
    total = data + admitted
    age_of_all = no_fma((data_age_s + duration_s) * data) + FRESH_AGE_S * admitted
    mixed = age_of_all / jnp.where(total > 0, total, 1.0)
    return jnp.where(train | (total <= 0), FRESH_AGE_S, mixed)


def next_model_age(trained: DeviceFlags, model_age_s: PerDevice, duration_s: Scalar) -> PerDevice:
    """Compute the age of the model: delta' = (delta + L)(1 - alpha)."""
    return jnp.where(trained, 0.0, model_age_s + duration_s)
