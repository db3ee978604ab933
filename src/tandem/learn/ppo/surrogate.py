"""The surrogate objectives of PPO: a weighted sum of objectives, or one objective while the others are constrained.

A batch's advantages estimate by how much some quantities would change under the new policy. ``advantage_columns``
defines these quantities, ``objective`` the merit of their changes.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, Objectives, Scalar

Columns = Float[Array, "*samples columns"]
BARRIER_LINEAR_BELOW = 1e-3  # slack of a normalised return below which the logarithm is continued by its tangent


class Surrogate(eqx.Module):
    """Base class of surrogate objectives, which an update maximises."""

    @abstractmethod
    def at_step(self, reward: Objectives, advantages: Float[Array, "*samples 3"]) -> Surrogate:
        """Return the surrogate of this step, given the mean reward of the current policy and its advantages."""

    @abstractmethod
    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        """Return the advantages of the quantities whose changes ``objective`` needs."""

    @abstractmethod
    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        """Return the merit of these changes; differentiable."""


class ScalarisedSurrogate(Surrogate):
    """The scalarised objective of Pareto initialisation, A_w = w . A, with the episode's preference w.

    Each objective's advantages are normalised before they are weighted; otherwise energy, which has the largest
    numerical range, would dominate.
    """

    def at_step(self, reward: Objectives, advantages: Float[Array, "*samples 3"]) -> ScalarisedSurrogate:
        return self

    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        samples = tuple(range(advantages.ndim - 1))
        centred = advantages - jnp.mean(advantages, axis=samples)
        scalar = jnp.sum(preferences * centred / (jnp.std(advantages, axis=samples) + 1e-8), axis=-1)
        return ((scalar - jnp.mean(scalar)) / (jnp.std(scalar) + 1e-8))[..., None]

    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        return changes[0]


class BarrierSurrogate(Surrogate):
    """Problem P4: max J_l + sum over i != l of log(J_i - c_i) / mu, with c_i = beta J_i(pi').

    Returns are normalised to positive numbers by ranges that are fixed when the policy is selected, so that beta times
    a return is below it. pi' is the policy before this step, as in the paper, or, if ``anchored``, the selected policy,
    so that many small steps cannot add up to a large loss.
    """

    target: Objectives  # 1 for the objective to improve, 0 for the constrained ones
    low: Objectives  # mean rewards that are normalised to 0
    span: Objectives  # difference from there to 1
    selected: Objectives  # mean rewards of the selected policy
    beta: Scalar | float
    mu: Scalar | float
    anchored: Scalar | float = 0.0  # 1: thresholds are those of the selected policy
    current_return: Objectives | None = None  # normalised returns before the step
    scale: Scalar | None = None  # standard deviation of the advantages of the objective to improve

    def normalise(self, rewards: Objectives) -> Objectives:
        """Return mean rewards on the scale of the front."""
        return (rewards - self.low) / self.span

    def thresholds(self) -> Objectives:
        """Return c, the returns below which the constrained objectives must not fall."""
        selected = self.normalise(self.selected)
        assert self.current_return is not None, "call at_step first"
        return self.beta * jnp.where(self.anchored > 0, selected, self.current_return)

    def at_step(self, reward: Objectives, advantages: Float[Array, "*samples 3"]) -> BarrierSurrogate:
        deviation = jnp.std(advantages / self.span, axis=tuple(range(advantages.ndim - 1)))
        return BarrierSurrogate(
            self.target,
            self.low,
            self.span,
            self.selected,
            self.beta,
            self.mu,
            self.anchored,
            current_return=self.normalise(reward),
            scale=jnp.sum(self.target * deviation) + 1e-8,
        )

    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        return (advantages - jnp.mean(advantages, axis=tuple(range(advantages.ndim - 1)))) / self.span

    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        assert self.current_return is not None, "call at_step first"
        assert self.scale is not None
        barrier = log_barrier(self.current_return + changes - self.thresholds(), self.mu)
        # The division changes no optimum; it keeps the gradient on the scale that ent_coef is chosen for.
        return jnp.sum(jnp.where(self.target > 0, changes, barrier)) / self.scale


def log_barrier(slack: Array, mu: Scalar | float) -> Array:
    """Compute phi = log(J - c) / mu, extended by its tangent, so that a violated constraint has a useful gradient."""
    inside = jnp.log(jnp.maximum(slack, BARRIER_LINEAR_BELOW))
    return (inside + jnp.minimum(slack - BARRIER_LINEAR_BELOW, 0.0) / BARRIER_LINEAR_BELOW) / mu


def clipped_objective(ratio: Array, advantage: Array, clip_eps: Scalar | float) -> Array:
    """Compute the clipped objective of PPO, min(r A, clip(r, 1 - eps, 1 + eps) A)."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip_eps, 1 + clip_eps) * advantage)
