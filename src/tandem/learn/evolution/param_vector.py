"""Networks as parameter vectors, for evolutionary algorithms. Only the actor is in the vector."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Float

from tandem.feel.types import Array
from tandem.policy.networks import ActorCritic
from tandem.tree import tree_index

MIN_SCALE = 1e-3  # of a layer's weights


def to_param_vector(networks: ActorCritic) -> Float[Array, "members genes"]:
    """Return the actor weights of a stack of networks, one row for each."""
    actors, _ = eqx.partition(networks, _actor(networks))
    return jax.vmap(lambda actor: ravel_pytree(actor)[0])(actors)


def from_param_vector(networks: ActorCritic, genes: Float[Array, "members genes"]) -> ActorCritic:
    """Replace the actor weights of a stack of networks."""
    actors, rest = eqx.partition(networks, _actor(networks))
    _, unravel = ravel_pytree(tree_index(actors, 0))
    combined: ActorCritic = eqx.combine(jax.vmap(unravel)(genes), rest)
    return combined


def param_scale(networks: ActorCritic) -> Float[Array, " genes"]:
    """Return for each gene the root mean square of the weights of its layer, over the stack."""
    actors, _ = eqx.partition(networks, _actor(networks))

    def layer_scale(leaf: Array) -> Array:
        return jnp.full(leaf.shape[1:], jnp.maximum(jnp.sqrt(jnp.mean(leaf**2)), MIN_SCALE))

    scale: Array = ravel_pytree(jax.tree.map(layer_scale, actors))[0]
    return scale


def _actor(networks: ActorCritic) -> Any:
    """Return the mask of the actor: all weights except the critic's."""
    weights = jax.tree.map(eqx.is_inexact_array, networks)
    if not hasattr(networks, "critic"):
        return weights
    excluded = jax.tree.map(lambda _: False, networks.critic)
    return eqx.tree_at(lambda network: network.critic, weights, excluded)
