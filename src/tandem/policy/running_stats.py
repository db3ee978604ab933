"""Running mean and spread: the one normalisation that training, evaluation and deployment share."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.types import Array, Scalar

CLIP = 10.0  # standard deviations beyond which a value says no more


class RunningStats(eqx.Module):
    """Count, mean and sum of squared deviations of what was seen, feature by feature."""

    count: Scalar
    mean: Array
    squares: Array

    @classmethod
    def init(cls, features: int) -> RunningStats:
        """Before anything was seen: standardising changes nothing."""
        return cls(jnp.zeros(()), jnp.zeros(features), jnp.zeros(features))

    def update(self, values: Array) -> RunningStats:
        """With a batch [..., features] added (Chan, Golub and LeVeque's formula for two sets)."""
        rows = values.reshape(-1, values.shape[-1])
        seen = float(rows.shape[0])
        mean = jnp.mean(rows, axis=0)
        squares = jnp.sum((rows - mean) ** 2, axis=0)
        count = self.count + seen
        shift = mean - self.mean
        return RunningStats(
            count=count,
            mean=self.mean + shift * (seen / count),
            squares=self.squares + squares + shift * shift * (self.count * seen / count),
        )

    def normalise(self, values: Array) -> Array:
        """Values in standard deviations from the mean, bounded; a feature that never varied gives 0."""
        variance = jnp.where(self.count > 0, self.squares / jnp.maximum(self.count, 1.0), 1.0)
        varies = variance > 1e-12 * (1 + self.mean * self.mean)
        spread = jnp.sqrt(jnp.where(varies, variance, 1.0))
        standard = jnp.where(varies, (values - self.mean) / spread, 0.0)
        return jnp.clip(standard, -CLIP, CLIP)
