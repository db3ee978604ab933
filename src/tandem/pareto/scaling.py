"""Scaling of objectives inside compiled code: 0 at the worst of a front, 1 at its best."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.pareto.archive import Archive
from tandem.pareto.types import Array, Point3

# A range is at least this share of the values themselves (and ``MIN_RANGE``): a front of one policy has no range to
# divide by.
MIN_SPAN = 1e-3
MIN_RANGE = 1e-6


class ObjectiveScaler(eqx.Module):
    """Min-max scaler of objectives."""

    low: Point3  # scaled to 0
    span: Point3  # low + span is scaled to 1

    @classmethod
    def from_archive(cls, archive: Archive) -> ObjectiveScaler:
        """Create a scaler with the ranges of a front that has at least one policy."""
        lowest = jnp.min(jnp.where(archive.valid[:, None], archive.points, jnp.inf), axis=0)
        highest = jnp.max(jnp.where(archive.valid[:, None], archive.points, -jnp.inf), axis=0)
        magnitude = jnp.maximum(jnp.abs(lowest), jnp.abs(highest))
        return cls(lowest, jnp.maximum(highest - lowest, MIN_SPAN * magnitude + MIN_RANGE))

    def scale(self, points: Float[Array, "*points 3"]) -> Float[Array, "*points 3"]:
        """Scale mean rewards."""
        return (points - self.low) / self.span
