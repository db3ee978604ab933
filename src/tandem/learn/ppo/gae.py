"""Generalised advantage estimation, one objective beside the other."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, Objectives, Scalar

PerRound = Float[Array, "rounds 3"]


def compute_gae(
    rewards: PerRound, values: PerRound, last_value: Objectives, discount: Scalar | float, trace: Scalar | float
) -> PerRound:
    """A_t = sum over k of (discount trace)^k delta_{t+k}, delta_t = r_t + discount V_{t+1} - V_t, for each objective.

    An episode ends because time is up, not because the fleet does: the value of the state it ends in counts.
    """
    following = jnp.concatenate([values[1:], last_value[None]])
    errors = rewards + discount * following - values

    def backwards(later: Objectives, error: Objectives) -> tuple[Objectives, Objectives]:
        now = error + discount * trace * later
        return now, now

    _, found = jax.lax.scan(backwards, jnp.zeros_like(last_value), errors, reverse=True)
    return found
