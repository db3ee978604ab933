"""Objectives on one scale: 0 at the worst of a front, 1 at its best."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, Objectives
from tandem.pareto.archive import Archive

# A range is at least this share of the values themselves: a front of one policy has none, and nothing to divide by.
MIN_SPAN = 1e-3


class ObjectiveScaler(eqx.Module):
    """A scale for objective space."""

    low: Objectives  # what counts as 0
    span: Objectives  # and how much more counts as 1

    @classmethod
    def from_archive(cls, archive: Archive) -> ObjectiveScaler:
        """The ranges of a front, which has a policy at least."""
        lowest = jnp.min(jnp.where(archive.valid[:, None], archive.points, jnp.inf), axis=0)
        highest = jnp.max(jnp.where(archive.valid[:, None], archive.points, -jnp.inf), axis=0)
        magnitude = jnp.maximum(jnp.abs(lowest), jnp.abs(highest))
        return cls(lowest, jnp.maximum(highest - lowest, MIN_SPAN * magnitude + 1e-6))

    def scale(self, points: Float[Array, "*points 3"]) -> Float[Array, "*points 3"]:
        """Mean rewards on the scale."""
        return (points - self.low) / self.span
