"""What the edge server does: average the updates of a round's trainers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.federated.learning import Model
from tandem.feel.types import Array


def federated_average(before: Model, updated: Model, samples: Float[Array, " trainers"]) -> Model:
    """FedAvg: w = sum of D_n w_n / sum of D_n, leaf by leaf; as before if nobody has samples."""
    total = jnp.sum(samples)
    shares = samples / jnp.where(total > 0, total, 1.0)

    def mean(old: Array, stacked: Array) -> Array:
        counted = jnp.where((samples > 0).reshape(-1, *(1,) * old.ndim), stacked, 0.0)  # 0 times infinity is no number
        return jnp.where(total > 0, jnp.tensordot(shares, counted, axes=1), old)

    return jax.tree.map(mean, before, updated)
