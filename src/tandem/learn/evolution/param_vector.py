"""Networks as vectors of numbers, for algorithms that know nothing of networks. Only what decides is in the vector."""

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

SMALLEST = 1e-3  # scale of a layer's weights


def to_param_vector(networks: ActorCritic) -> Float[Array, "members genes"]:
    """The weights of the actors of a stack of networks, a row each."""
    actors, _ = eqx.partition(networks, _actor(networks))
    return jax.vmap(lambda actor: ravel_pytree(actor)[0])(actors)


def from_param_vector(networks: ActorCritic, genes: Float[Array, "members genes"]) -> ActorCritic:
    """The same stack of networks with other actors."""
    actors, rest = eqx.partition(networks, _actor(networks))
    _, unravel = ravel_pytree(tree_index(actors, 0))
    whole: ActorCritic = eqx.combine(jax.vmap(unravel)(genes), rest)
    return whole


def param_scale(networks: ActorCritic) -> Float[Array, " genes"]:
    """For each gene how large the weights of its layer are: root mean squares over the layer and the stack."""
    actors, _ = eqx.partition(networks, _actor(networks))

    def usual(leaf: Array) -> Array:
        return jnp.full(leaf.shape[1:], jnp.maximum(jnp.sqrt(jnp.mean(leaf**2)), SMALLEST))

    scale: Array = ravel_pytree(jax.tree.map(usual, actors))[0]
    return scale


def _actor(networks: ActorCritic) -> Any:
    """Which leaves decide: all weights but the critic's."""
    weights = jax.tree.map(eqx.is_inexact_array, networks)
    if not hasattr(networks, "critic"):
        return weights
    nothing = jax.tree.map(lambda _: False, networks.critic)
    return eqx.tree_at(lambda network: network.critic, weights, nothing)
