"""Prediction of how training a policy with a weight would change its objectives, from records of similar policies.

The model is that of PG-MORL (Xu et al., 2020): the larger the weight of an objective, the more it improves, between a
worst and a best change. It is fitted for every policy and objective, in one batched computation of fixed length.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from tandem.feel.types import Array, Scalar

PerRecord = Float[Array, " records"]
Vector = Float[Array, "4"]  # the parameters of a curve in the search
Square = Float[Array, "4 4"]

ITERATIONS = 40
# Residuals count squared up to this share of the typical change, and linearly above, which limits outliers.
HUBER_DELTA = 0.3
# Prior of a curve in units of the typical change: height, log of steepness, middle and level; standard deviations; and
# the weight of the prior relative to a record.
PRIOR_MEAN = (0.0, math.log(6.0), 1 / 3, 0.0)
PRIOR_SCALE = (1.0, 1.0, 0.3, 1.0)
PRIOR_WEIGHT = 0.01
LOWER_BOUNDS, UPPER_BOUNDS = (-4.0, math.log(0.5), -0.5, -5.0), (2.0, math.log(40.0), 1.5, 5.0)
MIN_CHANGE = 0.01  # smallest typical change, on normalised objectives


class ImprovementCurve(eqx.Module):
    """The curve f(x) = A (exp(a (x - b)) - 1) / (exp(a (x - b)) + 1) + c, which increases in x."""

    height: Scalar  # A
    steepness: Scalar  # a
    middle: Scalar  # b
    level: Scalar  # c

    def __call__(self, x: Array) -> Array:
        """Return the change of an objective that has the weight x; the quotient is a hyperbolic tangent."""
        return self.height * jnp.tanh(self.steepness * (x - self.middle) / 2) + self.level


def predict_improvement(
    policies: Float[Array, "policies 3"],
    weights: Float[Array, "weights 3"],
    before: Float[Array, "records 3"],
    trained: Float[Array, "records 3"],
    change: Float[Array, "records 3"],
    valid: Bool[Array, " records"],
    radius: Scalar | float,
    min_records: int,
) -> Float[Array, "policies weights 3"]:
    """Predict the objectives of each policy after training with each weight.

    All objectives are normalised; ``trained`` are the weights of the records.
    """
    nearness = neighbourhood(policies, before, valid, radius, min_records)

    def predict_policy(policy: Array, near: PerRecord) -> Array:
        def predict_objective(current: Scalar, weight: Array, used: PerRecord, changed: PerRecord) -> Array:
            return current + fit_curve(used, changed, near)(weight)

        return jax.vmap(predict_objective, in_axes=(0, 1, 1, 1), out_axes=1)(policy, weights, trained, change)

    return jax.vmap(predict_policy)(policies, nearness)


def neighbourhood(
    policies: Float[Array, "policies 3"],
    before: Float[Array, "records 3"],
    valid: Bool[Array, " records"],
    radius: Scalar | float,
    min_records: int,
) -> Float[Array, "policies records"]:
    """Return the weight of each record for each policy: 1 at distance 0, less with distance, 0 beyond the reach.

    The reach is the radius, or more if fewer than ``min_records`` records lie within it.
    """
    distance = jnp.linalg.norm(policies[:, None] - before, axis=-1)
    near = jnp.sort(jnp.where(valid, distance, jnp.inf), axis=1)[:, : min(min_records, len(before))]
    reach = jnp.maximum(radius, jnp.max(jnp.where(jnp.isfinite(near), near, 0.0), axis=1))[:, None]
    return jnp.where(valid & (distance <= reach), jnp.exp(-2 * (distance / reach) ** 2), 0.0)


def fit_curve(x: PerRecord, y: PerRecord, weight: PerRecord) -> ImprovementCurve:
    """Fit a curve robustly, by damped Gauss-Newton steps on re-weighted squares.

    Where the data do not determine it, such as when all records have one weight, it is that of the prior.
    """
    typical = jnp.maximum(_weighted_median(jnp.abs(y), weight), MIN_CHANGE)
    data = _Data(x, y / typical, weight)
    prior, lowest, highest = (jnp.asarray(values, float) for values in (PRIOR_MEAN, LOWER_BOUNDS, UPPER_BOUNDS))
    first = prior.at[3].set(jnp.clip(_weighted_median(data.y, weight), lowest[3], highest[3]))

    def iterate(_: int, carry: tuple[Array, Scalar, Scalar]) -> tuple[Array, Scalar, Scalar]:
        shape, loss, damping = carry
        gradient, curvature = _normal_equations(shape, data)
        damped = curvature + damping * jnp.diag(jnp.diag(curvature))
        candidate = jnp.clip(shape - _solve(damped, gradient), lowest, highest)
        candidate_loss = _loss(candidate, data)
        better = candidate_loss < loss
        return (
            jnp.where(better, candidate, shape),
            jnp.where(better, candidate_loss, loss),
            jnp.clip(damping * jnp.where(better, 0.3, 4.0), 1e-6, 1e6),
        )

    start = (first, _loss(first, data), jnp.asarray(0.1, float))
    shape, _, _ = jax.lax.fori_loop(0, ITERATIONS, iterate, start)
    curve = _curve(shape)
    return ImprovementCurve(typical * curve.height, curve.steepness, curve.middle, typical * curve.level)


class _Data(NamedTuple):
    x: PerRecord
    y: PerRecord  # in units of the typical change
    weight: PerRecord


def _curve(shape: Vector) -> ImprovementCurve:
    """Return the curve of a parameter vector, which has height and steepness as logarithms, to keep them positive."""
    return ImprovementCurve(jnp.exp(shape[0]), jnp.exp(shape[1]), shape[2], shape[3])


def _prior_residual(shape: Vector) -> Vector:
    return (shape - jnp.asarray(PRIOR_MEAN, float)) / jnp.asarray(PRIOR_SCALE, float)


def _loss(shape: Vector, data: _Data) -> Scalar:
    """Compute the soft L1 loss of the residuals, plus the prior."""
    residual = (_curve(shape)(data.x) - data.y) / HUBER_DELTA
    return jnp.sum(data.weight * 2 * (jnp.sqrt(1 + residual**2) - 1)) + PRIOR_WEIGHT * jnp.sum(
        _prior_residual(shape) ** 2
    )


def _normal_equations(shape: Vector, data: _Data) -> tuple[Vector, Square]:
    curve = _curve(shape)
    bend = jnp.tanh(curve.steepness * (data.x - curve.middle) / 2)
    slope = curve.height * (1 - bend**2) * curve.steepness / 2
    columns = (
        jnp.stack([curve.height * bend, slope * (data.x - curve.middle), -slope, jnp.ones_like(bend)]) / HUBER_DELTA
    )
    residual = (curve.height * bend + curve.level - data.y) / HUBER_DELTA
    weighted = columns * (data.weight / jnp.sqrt(1 + residual**2))
    scale = jnp.asarray(PRIOR_SCALE, float)
    prior = PRIOR_WEIGHT / scale
    return weighted @ residual + prior * _prior_residual(shape), weighted @ columns.T + jnp.diag(prior / scale)


def _solve(matrix: Square, vector: Vector) -> Vector:
    """Solve by Gaussian elimination; a positive definite matrix needs no pivots, and library calls are slower."""
    rows = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for k in range(len(vector)):
        row = rows[k] / rows[k, k]
        rows = rows - (rows[:, k] - jnp.eye(len(vector))[k])[:, None] * row
    return rows[:, -1]


def _weighted_median(values: PerRecord, weight: PerRecord) -> Scalar:
    """Return the smallest value with half of the weight at or below it; 0 if there is no weight."""
    order = jnp.argsort(values)
    below = jnp.cumsum(weight[order])
    middle = jnp.argmax(below >= 0.5 * below[-1])
    return jnp.where(below[-1] > 0, values[order][middle], 0.0)
