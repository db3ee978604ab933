"""Performance buffers: policies to continue training from, the best few in every direction of objective space.

Unlike an archive, buffers also keep dominated policies if there is nothing better in their direction, so that training
can start everywhere along the front.
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

MIN_COMPONENT = 1e-3  # smallest share of an objective in a direction


class PerformanceBuffer(eqx.Module):
    """Slots for ``directions`` times ``depth`` train states, in any directions."""

    points: Float[Array, "slots 3"]  # mean rewards
    valid: Bool[Array, " slots"]
    kept: TrainState
    directions: int = eqx.field(static=True)
    depth: int = eqx.field(static=True)  # largest number in a direction

    @classmethod
    def init(cls, directions: int, depth: int, like: TrainState) -> PerformanceBuffer:
        """Create an empty buffer for stacks of train states like this one."""
        slots = directions * depth
        points = jnp.full((slots, 3), -jnp.inf, float)
        return cls(points, jnp.zeros(slots, bool), tree_zeros(slots, like), directions, depth)

    def insert(self, new: TrainState, rewards: Float[Array, "members 3"], scaler: ObjectiveScaler) -> PerformanceBuffer:
        """Keep those of a stack that are among the farthest out in their direction, on the current scale."""
        slots = self.valid.shape[0]
        points = jnp.concatenate([self.points, rewards])
        valid = jnp.concatenate([self.valid, jnp.all(jnp.isfinite(rewards), axis=1)])
        best = best_by_direction(scaler.scale(points), valid, self.directions, self.depth)
        stays, enters = best[:slots], best[slots:]
        places = assign_slots(stays, enters)
        points = store(jnp.where(stays[:, None], self.points, -jnp.inf), places, rewards)
        kept = store(self.kept, places, new)
        return PerformanceBuffer(points, store(stays, places, enters), kept, self.directions, self.depth)


def best_by_direction(
    points: Float[Array, "points 3"], valid: Bool[Array, " points"], directions: int, depth: int
) -> Bool[Array, " points"]:
    """Return the mask of the ``depth`` scaled points farthest out in each direction; of equal ones the first."""
    rays = interior_simplex(directions, MIN_COMPONENT)
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    positive = jnp.where(valid[:, None], jnp.maximum(points, 0.0), 0.0)
    direction = jnp.argmax(positive @ jnp.asarray(rays.T, float), axis=1)
    distance = jnp.linalg.norm(positive, axis=1)
    index = jnp.arange(len(points))
    farther = (distance[:, None] > distance) | ((distance[:, None] == distance) & (index[:, None] < index))
    competitors = valid[:, None] & (direction[:, None] == direction) & farther
    return valid & (jnp.sum(competitors, axis=0) < depth)
