"""Generalised advantage estimation (GAE), for each objective separately."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, Objectives, Scalar

PerRound = Float[Array, "rounds 3"]


def compute_gae(
    rewards: PerRound, values: PerRound, last_value: Objectives, gamma: Scalar | float, gae_lambda: Scalar | float
) -> PerRound:
    """Compute A_t = sum_k (gamma lambda)^k delta_{t+k}, delta_t = r_t + gamma V_{t+1} - V_t, for each objective.

    Episodes are truncated, not terminated: the advantages include the value of the state after the last round.
    """
    next_values = jnp.concatenate([values[1:], last_value[None]])
    errors = rewards + gamma * next_values - values

    def backwards(later: Objectives, error: Objectives) -> tuple[Objectives, Objectives]:
        advantage = error + gamma * gae_lambda * later
        return advantage, advantage

    _, advantages = jax.lax.scan(backwards, jnp.zeros_like(last_value), errors, reverse=True)
    return advantages
