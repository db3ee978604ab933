"""What the edge server does: average the updates of a round's trainers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float

from tandem.federated.data import Samples
from tandem.federated.ragged import sum_over_ragged
from tandem.feel.types import Array, Count, Scalar


def federated_average(before: Model, updated: Model, samples: Float[Array, " trainers"]) -> Model:
    """FedAvg: w = sum of D_n w_n / sum of D_n, leaf by leaf; as before if nobody has samples."""
    total = jnp.sum(samples)
    shares = samples / jnp.where(total > 0, total, 1.0)

    def mean(old: Array, stacked: Array) -> Array:
        counted = jnp.where((samples > 0).reshape(-1, *(1,) * old.ndim), stacked, 0.0)  # 0 times infinity is no number
        return jnp.where(total > 0, jnp.tensordot(shares, counted, axes=1), old)

    return jax.tree.map(mean, before, updated)


Model = Any  # a pytree of arrays, called with a batch of pixels


def summed_loss(model: Model, samples: Samples, valid: Bool[Array, " slots"]) -> Scalar:
    """Cross entropy over the valid samples, summed."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(samples.pixels), samples.labels)
    return jnp.sum(jnp.where(valid, losses, 0.0))


_summed_gradient = jax.grad(summed_loss)


def gradient(model: Model, samples: Samples, count: Count) -> Model:
    """The gradient of F(w), the mean loss over the first ``count`` samples; 0 if there are none."""
    total = sum_over_ragged(_summed_gradient, model, samples, count)
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), total)


def local_update(model: Model, samples: Samples, count: Count, iterations: Scalar, learning_rate: Scalar) -> Model:
    """w <- w - eta grad F(w), U times, over all of a device's new samples."""

    def step(_: Count, now: Model) -> Model:
        return jax.tree.map(lambda w, slope: w - learning_rate * slope, now, gradient(now, samples, count))

    return jax.lax.fori_loop(0, iterations.astype(jnp.int32), step, model)


def count_correct(model: Model, samples: Samples, count: Count) -> Count:
    """How many of the first ``count`` samples the model classifies rightly."""
    total: Count = sum_over_ragged(_right, model, samples, count)
    return total


def _right(model: Model, asked: Samples, valid: Bool[Array, " slots"]) -> Count:
    return jnp.sum(valid & (jnp.argmax(model(asked.pixels), axis=-1) == asked.labels))
