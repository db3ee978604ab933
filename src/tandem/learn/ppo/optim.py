"""The optimiser of PPO: Adam with gradient clipping and a decaying learning rate, on all weights as one vector.

One vector instead of many small arrays compiles faster, and devices that train together exchange it in one operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import equinox as eqx
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from tandem.feel.types import Array
from tandem.learn.config import PPOConfig
from tandem.policy.networks import ActorCritic

Weights = Float[Array, " weights"]
MIN_LR_FRACTION = 0.05  # share of the learning rate that remains at the end of a decay


def init_optimiser(network: ActorCritic, config: PPOConfig) -> optax.OptState:
    """Return the state of the optimiser before its first update."""
    return make_optimiser(config).init(flatten_weights(network)[0])


def make_optimiser(config: PPOConfig) -> optax.GradientTransformation:
    """Create the optimiser of a vector of weights."""

    def learning_rate(updates: Array) -> Array:
        return config.learning_rate * jnp.maximum(1 - config.lr_decay * updates, MIN_LR_FRACTION)

    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), optax.adam(learning_rate, eps=1e-5))


def flatten_weights(network: ActorCritic) -> tuple[Weights, Callable[[Weights], ActorCritic]]:
    """Return the weights of a network as a vector, and the function that converts such a vector to a network."""
    weights, rest = eqx.partition(network, eqx.is_inexact_array)
    vector, unravel = ravel_pytree(weights)
    return vector, lambda vector: cast(ActorCritic, eqx.combine(unravel(vector), rest))
