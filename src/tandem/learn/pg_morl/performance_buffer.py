"""Performance buffers: learners to go on from, the best few in every direction of objective space.

An archive keeps what nothing dominates; buffers also keep what is dominated, where there is nothing better in its
direction, so that training can set out from all over the front.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from tandem.feel.types import Array
from tandem.learn.ppo.ppo import TrainState
from tandem.pareto import assign_slots, interior_simplex, store
from tandem.pareto.scaling import ObjectiveScaler
from tandem.tree import tree_zeros

OUTER_ANGLE = 1e-3  # the least share of any objective in a direction


class PerformanceBuffer(eqx.Module):
    """Slots for ``directions`` times ``depth`` learners, whichever directions they lie in."""

    points: Float[Array, "slots 3"]  # mean rewards
    valid: Bool[Array, " slots"]
    kept: TrainState
    directions: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)  # most in a direction

    @classmethod
    def init(cls, directions: int, depth: int, like: TrainState) -> PerformanceBuffer:
        """Without any, for a stack of learners like these."""
        slots = directions * depth
        nowhere = jnp.full((slots, 3), -jnp.inf, float)
        return cls(nowhere, jnp.zeros(slots, bool), tree_zeros(slots, like), directions, depth)

    def insert(self, new: TrainState, rewards: Float[Array, "members 3"], space: ObjectiveScaler) -> PerformanceBuffer:
        """With those of a stack kept that are among the farthest out in their direction, on a scale as of now."""
        slots = self.valid.shape[0]
        everyone = jnp.concatenate([self.points, rewards])
        there = jnp.concatenate([self.valid, jnp.all(jnp.isfinite(rewards), axis=1)])
        best = best_by_direction(space.scale(everyone), there, self.directions, self.depth)
        stays, enters = best[:slots], best[slots:]
        places = assign_slots(stays, enters)
        points = store(jnp.where(stays[:, None], self.points, -jnp.inf), places, rewards)
        kept = store(self.kept, places, new)
        return PerformanceBuffer(points, store(stays, places, enters), kept, self.directions, self.depth)


def best_by_direction(
    points: Float[Array, "points 3"], valid: Bool[Array, " points"], directions: int, depth: int
) -> Bool[Array, " points"]:
    """The mask of the ``depth`` rescaled points that lie farthest out in each direction; of equal ones the first."""
    rays = interior_simplex(directions, OUTER_ANGLE)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    out = jnp.where(valid[:, None], jnp.maximum(points, 0.0), 0.0)
    direction = jnp.argmax(out @ jnp.asarray(rays.T, float), axis=1)
    distance = jnp.linalg.norm(out, axis=1)
    index = jnp.arange(len(points))
    farther = (distance[:, None] > distance) | ((distance[:, None] == distance) & (index[:, None] < index))
    rivals = valid[:, None] & (direction[:, None] == direction) & farther
    return valid & (jnp.sum(rivals, axis=0) < depth)
