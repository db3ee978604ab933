"""The history of training: a ring buffer of the latest records."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.feel.types import Array


class History(eqx.Module):
    """Records: the change of a policy's mean rewards over some training steps with a weight."""

    weights: Float[Array, "records 3"]
    before: Float[Array, "records 3"]
    change: Float[Array, "records 3"]
    count: Int[Array, ""]  # records ever written

    @classmethod
    def init(cls, capacity: int) -> History:
        """Create an empty history."""
        zeros = jnp.zeros((capacity, 3), float)
        return cls(zeros, zeros, zeros, jnp.zeros((), jnp.int32))

    @property
    def valid(self) -> Bool[Array, " records"]:
        """The mask of the slots that hold a record."""
        return jnp.arange(len(self.weights)) < self.count

    def append(
        self,
        weights: Float[Array, "members 3"],
        before: Float[Array, "members 3"],
        change: Float[Array, "members 3"],
        valid: Bool[Array, " members"],
    ) -> History:
        """Replace the oldest records by the valid ones of these, which must not be more than the capacity."""
        capacity = len(self.weights)
        slots = jnp.where(valid, (self.count + jnp.cumsum(valid) - 1) % capacity, capacity)

        def write(old: Array, new: Array) -> Array:
            return old.at[slots].set(new, mode="drop")

        return History(
            write(self.weights, weights),
            write(self.before, before),
            write(self.change, change),
            self.count + jnp.sum(valid, dtype=jnp.int32),
        )
