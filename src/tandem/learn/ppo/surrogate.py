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
NEAR = 1e-3  # of a normalised return: nearer to its wall than this, the logarithm goes on as a straight line


class Aim(eqx.Module):
    """What to maximise."""

    @abstractmethod
    def prepared(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> Aim:
        """The aim of this step, given the whole batch: mean rewards of the policy as it is, and its advantages."""

    @abstractmethod
    def columns(self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]) -> Columns:
        """The advantages of the quantities that ``gain`` wants to know the changes of."""

    @abstractmethod
    def gain(self, changes: Float[Array, " columns"]) -> Scalar:
        """The merit of these changes; differentiable."""


class Weighted(Aim):
    """The scalarised task of Pareto initialisation, A_w = w . A, with w the preference of the episode.

    Each objective's advantages are brought to one scale before they are weighed, or joules would outvote accuracy.
    """

    def prepared(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> Weighted:
        return self

    def columns(self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]) -> Columns:
        everywhere = tuple(range(advantages.ndim - 1))
        centred = advantages - jnp.mean(advantages, axis=everywhere)
        scalar = jnp.sum(preferences * centred / (jnp.std(advantages, axis=everywhere) + 1e-8), axis=-1)
        return ((scalar - jnp.mean(scalar)) / (jnp.std(scalar) + 1e-8))[..., None]

    def gain(self, changes: Float[Array, " columns"]) -> Scalar:
        return changes[0]


class Constrained(Aim):
    """Problem P4: max J_l + sum over i != l of log(J_i - c_i) / mu, with c_i = beta J_i(pi').

    Returns are normalised to positive numbers by ranges fixed when the policy was selected, so that a share beta of
    them is below them. pi' is the policy before this step as the paper has it, or, ``anchored``, the policy that was
    selected, so that many small steps cannot add up to a large loss.
    """

    objective: Objectives  # 1 for the objective to improve, 0 for those to hold
    low: Objectives  # mean rewards that count as 0
    span: Objectives  # and how much more counts as 1
    selected: Objectives  # mean rewards of the selected policy
    beta: Scalar | float
    mu: Scalar | float
    anchored: Scalar | float = 0.0  # 1: thresholds stay where the selected policy puts them
    level: Objectives | None = None  # normalised returns before the step
    scale: Scalar | None = None  # of the advantages of the objective to improve

    def normalised(self, rewards: Objectives) -> Objectives:
        """Mean rewards as returns on the scale of the front."""
        return (rewards - self.low) / self.span

    def floor(self) -> Objectives:
        """c: the returns below which the held objectives must not fall."""
        selected = self.normalised(self.selected)
        assert self.level is not None, "an aim is prepared before it is used"
        return self.beta * jnp.where(self.anchored > 0, selected, self.level)

    def prepared(self, level: Objectives, advantages: Float[Array, "*samples 3"]) -> Constrained:
        spread = jnp.std(advantages / self.span, axis=tuple(range(advantages.ndim - 1)))
        return Constrained(
            self.objective,
            self.low,
            self.span,
            self.selected,
            self.beta,
            self.mu,
            self.anchored,
            level=self.normalised(level),
            scale=jnp.sum(self.objective * spread) + 1e-8,
        )

    def columns(self, advantages: Float[Array, "*samples 3"], preferences: Float[Array, "*samples 3"]) -> Columns:
        return (advantages - jnp.mean(advantages, axis=tuple(range(advantages.ndim - 1)))) / self.span

    def gain(self, changes: Float[Array, " columns"]) -> Scalar:
        assert self.level is not None, "an aim is prepared before it is used"
        assert self.scale is not None
        barrier = log_barrier(self.level + changes - self.floor(), self.mu)
        # Dividing by the spread changes no optimum; it keeps the gradient on the scale that entropy is weighed on.
        return jnp.sum(jnp.where(self.objective > 0, changes, barrier)) / self.scale


def log_barrier(slack: Array, mu: Scalar | float) -> Array:
    """phi = log(J - c) / mu, continued below ``NEAR`` by its tangent: there is a way back from a broken constraint."""
    inside = jnp.log(jnp.maximum(slack, NEAR))
    return (inside + jnp.minimum(slack - NEAR, 0.0) / NEAR) / mu


def clipped_objective(ratio: Array, advantage: Array, clip: Scalar | float) -> Array:
    """min(r A, clip(r, 1 - eps, 1 + eps) A): what a change of a decision's probability is credited with."""
    return jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - clip, 1 + clip) * advantage)
