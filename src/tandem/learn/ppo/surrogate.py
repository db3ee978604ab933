"""What an update of a policy is to maximise: a weighted sum of objectives, or one objective while the others are held.

An aim works on *surrogates*: estimates, from the advantages of a batch, of how much a quantity would change under the
new policy. ``columns`` says which quantities, ``gain`` what to make of their changes.
"""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, Objectives, Scalar

Columns = Float[Array, "*samples columns"]
BARRIER_LINEAR_BELOW = (
    1e-3  # of a normalised return: nearer to its wall than this, the logarithm goes on as a straight line
)


class Surrogate(eqx.Module):
    """What to maximise."""

    @abstractmethod
    def at_step(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> Surrogate:
        """The aim of this step, given the whole batch: mean rewards of the policy as it is, and its advantages."""

    @abstractmethod
    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        """The advantages of the quantities that ``gain`` wants to know the changes of."""

    @abstractmethod
    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        """The merit of these changes; differentiable."""


class ScalarisedSurrogate(Surrogate):
    """The scalarised task of Pareto initialisation, A_w = w . A, with w the preference of the episode.

    Each objective's advantages are brought to one scale before they are weighed, or joules would outvote accuracy.
    """

    def at_step(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> ScalarisedSurrogate:
        return self

    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        everywhere = tuple(range(advantages.ndim - 1))
        centred = advantages - jnp.mean(advantages, axis=everywhere)
        scalar = jnp.sum(preferences * centred / (jnp.std(advantages, axis=everywhere) + 1e-8), axis=-1)
        return ((scalar - jnp.mean(scalar)) / (jnp.std(scalar) + 1e-8))[..., None]

    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        return changes[0]


class BarrierSurrogate(Surrogate):
    """Problem P4: max J_l + sum over i != l of log(J_i - c_i) / mu, with c_i = beta J_i(pi').

    Returns are normalised to positive numbers by ranges fixed when the policy was selected, so that a share beta of
    them is below them. pi' is the policy before this step as the paper has it, or, ``anchored``, the policy that was
    selected, so that many small steps cannot add up to a large loss.
    """

    target: Objectives  # 1 for the objective to improve, 0 for those to hold
    low: Objectives  # mean rewards that count as 0
    span: Objectives  # and how much more counts as 1
    selected: Objectives  # mean rewards of the selected policy
    beta: Scalar | float
    mu: Scalar | float
    anchored: Scalar | float = 0.0  # 1: thresholds stay where the selected policy puts them
    current_return: Objectives | None = None  # normalised returns before the step
    scale: Scalar | None = None  # of the advantages of the objective to improve

    def normalise(self, rewards: Objectives) -> Objectives:
        """Mean rewards as returns on the scale of the front."""
        return (rewards - self.low) / self.span

    def thresholds(self) -> Objectives:
        """c: the returns below which the held objectives must not fall."""
        selected = self.normalise(self.selected)
        assert self.current_return is not None, "an aim is prepared before it is used"
        return self.beta * jnp.where(self.anchored > 0, selected, self.current_return)

    def at_step(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> BarrierSurrogate:
        spread = jnp.std(advantages / self.span, axis=tuple(range(advantages.ndim - 1)))
        return BarrierSurrogate(
            self.target,
            self.low,
            self.span,
            self.selected,
            self.beta,
            self.mu,
            self.anchored,
            current_return=self.normalise(level),
            scale=jnp.sum(self.target * spread) + 1e-8,
        )

    def advantage_columns(
        self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]
    ) -> Columns:
        return (advantages - jnp.mean(advantages, axis=tuple(range(advantages.ndim - 1)))) / self.span

    def objective(self, changes: Float[Array, " advantage_columns"]) -> Scalar:
        assert self.current_return is not None, "an aim is prepared before it is used"
        assert self.scale is not None
        barrier = log_barrier(self.current_return + changes - self.thresholds(), self.mu)
        # Dividing by the spread changes no optimum; it keeps the gradient on the scale that entropy is weighed on.
        return jnp.sum(jnp.where(self.target > 0, changes, barrier)) / self.scale


def log_barrier(slack: Array, mu: Scalar | float) -> Array:
    """phi = log(J - c) / mu, continued below ``NEAR`` by its tangent: there is a way back from a broken constraint."""
    inside = jnp.log(jnp.maximum(slack, BARRIER_LINEAR_BELOW))
    return (inside + jnp.minimum(slack - BARRIER_LINEAR_BELOW, 0.0) / BARRIER_LINEAR_BELOW) / mu


def clipped_objective(ratio: Array, advantage: Array, clip: Scalar | float) -> Array:
    """min(r A, clip(r, 1 - eps, 1 + eps) A): what a change of a decision's probability is credited with."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
