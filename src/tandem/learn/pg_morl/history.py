"""What training did: under which weight, from where, how far. The latest records, in a ring of fixed size."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array


class History(eqx.Module):
    """A record is the change of a policy's mean rewards over so many training steps under a weight."""

    weights: Float[Array, "records 3"]
    before: Float[Array, "records 3"]
    change: Float[Array, "records 3"]
    count: Int[Array, ""]  # ever written

    @classmethod
    def init(cls, capacity: int) -> History:
        """Without any."""
        nothing = jnp.zeros((capacity, 3), float)
        return cls(nothing, nothing, nothing, jnp.zeros((), jnp.int32))

    @property
    def valid(self) -> Bool[Array, " records"]:
        """Which are there."""
        return jnp.arange(len(self.weights)) < self.count

    def append(
        self,
        weights: Float[Array, "members 3"],
        before: Float[Array, "members 3"],
        change: Float[Array, "members 3"],
        valid: Bool[Array, " members"],
    ) -> History:
        """With these, in place of the oldest; no more at once than there is room for."""
        capacity = len(self.weights)
        place = jnp.where(valid, (self.count + jnp.cumsum(valid) - 1) % capacity, capacity)

        def written(old: Array, new: Array) -> Array:
            return old.at[place].set(new, mode="drop")

        return History(
            written(self.weights, weights),
            written(self.before, before),
            written(self.change, change),
            self.count + jnp.sum(valid, dtype=jnp.int32),
        )
