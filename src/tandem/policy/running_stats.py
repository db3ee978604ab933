"""Running mean and variance: the normalisation of training, evaluation and deployment."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.types import Array, Scalar

MAX_DEVIATION = 10.0  # normalised values are clipped to this many standard deviations


class RunningStats(eqx.Module):
    """Count, mean and sum of squared deviations of all data so far, for each feature."""

    count: Scalar
    mean: Array
    squares: Array

    @classmethod
    def init(cls, features: int) -> RunningStats:
        """Create statistics without data, which only clip values."""
        return cls(jnp.zeros(()), jnp.zeros(features), jnp.zeros(features))

    def update(self, values: Array) -> RunningStats:
        """Add a batch, [..., features] (formula of Chan, Golub and LeVeque for the union of two sets)."""
        rows = values.reshape(-1, values.shape[-1])
        added = float(rows.shape[0])
        mean = jnp.mean(rows, axis=0)
        squares = jnp.sum((rows - mean) ** 2, axis=0)
        count = self.count + added
        shift = mean - self.mean
        return RunningStats(
            count=count,
            mean=self.mean + shift * (added / count),
            squares=self.squares + squares + shift * shift * (self.count * added / count),
        )

    def normalise(self, values: Array) -> Array:
        """Return values in standard deviations from the mean, clipped; 0 for a feature that never varied."""
        variance = jnp.where(self.count > 0, self.squares / jnp.maximum(self.count, 1.0), 1.0)
        varies = variance > 1e-12 * (1 + self.mean * self.mean)
        deviation = jnp.sqrt(jnp.where(varies, variance, 1.0))
        normalised = jnp.where(varies, (values - self.mean) / deviation, 0.0)
        return jnp.clip(normalised, -MAX_DEVIATION, MAX_DEVIATION)
