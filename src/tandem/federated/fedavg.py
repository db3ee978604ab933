"""FedAvg: clients take full-batch gradient steps, and the server averages their models by numbers of samples."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float

from tandem.federated.algorithm import AlgorithmState, FederatedAlgorithm, Model
from tandem.federated.data import Samples
from tandem.federated.ragged import sum_over_ragged
from tandem.feel.types import Array, Count, Scalar


class FedAvg(FederatedAlgorithm):
    """Federated averaging (McMahan et al., 2017) with full-batch local steps, as in the paper; it has no state."""

    def init(self, model: Model) -> AlgorithmState:
        return None

    def local_update(
        self, model: Model, samples: Samples, count: Count, iterations: Scalar, learning_rate: Scalar
    ) -> Model:
        return gradient_descent(lambda now: gradient(now, samples, count), model, iterations, learning_rate)

    def aggregate(
        self, state: AlgorithmState, model: Model, client_models: Model, weights: Float[Array, " clients"]
    ) -> tuple[AlgorithmState, Model]:
        return state, federated_average(model, client_models, weights)


def federated_average(before: Model, client_models: Model, weights: Float[Array, " clients"]) -> Model:
    """Return w = sum of D_n w_n / sum of D_n, leaf by leaf; ``before`` if all weights are 0."""
    total = jnp.sum(weights)
    shares = weights / jnp.where(total > 0, total, 1.0)

    def mean(old: Array, stacked: Array) -> Array:
        # A client of weight 0 may have diverged, and 0 times infinity is NaN.
        included = jnp.where((weights > 0).reshape(-1, *(1,) * old.ndim), stacked, 0.0)
        return jnp.where(total > 0, jnp.tensordot(shares, included, axes=1), old)

    return jax.tree.map(mean, before, client_models)


def gradient_descent(
    gradient_of: Callable[[Model], Model], model: Model, iterations: Scalar, learning_rate: Scalar
) -> Model:
    """Repeat w <- w - eta grad F(w) U times."""

    def step(_: Count, now: Model) -> Model:
        return jax.tree.map(lambda w, slope: w - learning_rate * slope, now, gradient_of(now))

    return jax.lax.fori_loop(0, iterations.astype(jnp.int32), step, model)


def gradient(model: Model, samples: Samples, count: Count) -> Model:
    """Return the gradient of F(w), the mean loss over the first ``count`` samples; 0 if there are none."""
    total = sum_over_ragged(_summed_gradient, model, samples, count)
    return jax.tree.map(lambda leaf: leaf / jnp.maximum(count, 1), total)


def summed_loss(model: Model, samples: Samples, valid: Bool[Array, " slots"]) -> Scalar:
    """Return the cross entropy summed over the valid samples."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(samples.pixels), samples.labels)
    return jnp.sum(jnp.where(valid, losses, 0.0))


_summed_gradient = jax.grad(summed_loss)


def count_correct(model: Model, samples: Samples, count: Count) -> Count:
    """Count how many of the first ``count`` samples the model classifies correctly."""
    total: Count = sum_over_ragged(_count_correct, model, samples, count)
    return total


def _count_correct(model: Model, samples: Samples, valid: Bool[Array, " slots"]) -> Count:
    return jnp.sum(valid & (jnp.argmax(model(samples.pixels), axis=-1) == samples.labels))
