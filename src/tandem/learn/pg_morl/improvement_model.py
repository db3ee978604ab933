"""What training a policy under a weight would do to its objectives, judged by what training did to its neighbours.

The model is that of PG-MORL (Xu et al., 2020): the more an objective weighs, the more it improves, between a worst and
a best change. It is fitted to every policy and objective, all in one batched computation of fixed length.
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
Vector = Float[Array, "4"]  # the numbers that make a curve, as the search sees them
Square = Float[Array, "4 4"]

ITERATIONS = 40
# Residuals count squared up to this share of the typical change, and linearly above: outliers have no more to say.
HUBER_DELTA = 0.3
# Without data, and in units of the typical change: height, log of steepness, middle and level of a curve; how far from
# that is usual; and how little of a record's weight this has.
PRIOR_MEAN = (0.0, math.log(6.0), 1 / 3, 0.0)
PRIOR_SCALE = (1.0, 1.0, 0.3, 1.0)
PRIOR_WEIGHT = 0.01
LOWEST, HIGHEST = (-4.0, math.log(0.5), -0.5, -5.0), (2.0, math.log(40.0), 1.5, 5.0)
SMALLEST = 0.01  # typical change that is believed, on rescaled objectives


class ImprovementCurve(eqx.Module):
    """f(x) = A (exp(a (x - b)) - 1) / (exp(a (x - b)) + 1) + c, rising in x."""

    height: Scalar  # A
    steepness: Scalar  # a
    middle: Scalar  # b
    level: Scalar  # c

    def __call__(self, x: Array) -> Array:
        """The change of an objective that has the weight x; the quotient is a hyperbolic tangent."""
        return self.height * jnp.tanh(self.steepness * (x - self.middle) / 2) + self.level


def predict_improvement(
    policies: Float[Array, "policies 3"],
    weights: Float[Array, "weights 3"],
    before: Float[Array, "records 3"],
    trained: Float[Array, "records 3"],
    change: Float[Array, "records 3"],
    valid: Bool[Array, " records"],
    radius: Scalar | float,
    fewest: int,
) -> Float[Array, "policies weights 3"]:
    """Where each policy would be after training under each weight. All objectives rescaled, ``trained`` are weights."""
    nearness = neighbourhood(policies, before, valid, radius, fewest)

    def of_policy(policy: Array, near: PerRecord) -> Array:
        def of_objective(level: Scalar, weight: Array, used: PerRecord, changed: PerRecord) -> Array:
            return level + fit_curve(used, changed, near)(weight)

        return jax.vmap(of_objective, in_axes=(0, 1, 1, 1), out_axes=1)(policy, weights, trained, change)

    return jax.vmap(of_policy)(policies, nearness)


def neighbourhood(
    policies: Float[Array, "policies 3"],
    before: Float[Array, "records 3"],
    valid: Bool[Array, " records"],
    radius: Scalar | float,
    fewest: int,
) -> Float[Array, "policies records"]:
    """How much each record has to say of each policy: 1 where they meet, less with distance, 0 out of reach.

    The reach is the radius, or more where fewer records than ``fewest`` lie within it.
    """
    distance = jnp.linalg.norm(policies[:, None] - before, axis=-1)
    near = jnp.sort(jnp.where(valid, distance, jnp.inf), axis=1)[:, : min(fewest, len(before))]
    reach = jnp.maximum(radius, jnp.max(jnp.where(jnp.isfinite(near), near, 0.0), axis=1))[:, None]
    return jnp.where(valid & (distance <= reach), jnp.exp(-2 * (distance / reach) ** 2), 0.0)


def fit_curve(x: PerRecord, y: PerRecord, weight: PerRecord) -> ImprovementCurve:
    """The curve nearest to the data in the robust sense, by damped Gauss-Newton steps on re-weighted squares.

    Where data leave it open, such as when all were trained under one weight, it is as expected.
    """
    typical = jnp.maximum(_weighted_median(jnp.abs(y), weight), SMALLEST)
    data = _Data(x, y / typical, weight)
    expected, lowest, highest = (jnp.asarray(values, float) for values in (PRIOR_MEAN, LOWEST, HIGHEST))
    first = expected.at[3].set(jnp.clip(_weighted_median(data.y, weight), lowest[3], highest[3]))

    def improved(_: int, carry: tuple[Array, Scalar, Scalar]) -> tuple[Array, Scalar, Scalar]:
        shape, loss, damping = carry
        gradient, curvature = _normal_equations(shape, data)
        damped = curvature + damping * jnp.diag(jnp.diag(curvature))
        moved = jnp.clip(shape - _solve(damped, gradient), lowest, highest)
        reached = _loss(moved, data)
        better = reached < loss
        return (
            jnp.where(better, moved, shape),
            jnp.where(better, reached, loss),
            jnp.clip(damping * jnp.where(better, 0.3, 4.0), 1e-6, 1e6),
        )

    start = (first, _loss(first, data), jnp.asarray(0.1, float))
    shape, _, _ = jax.lax.fori_loop(0, ITERATIONS, improved, start)
    found = _curve(shape)
    return ImprovementCurve(typical * found.height, found.steepness, found.middle, typical * found.level)


class _Data(NamedTuple):
    x: PerRecord
    y: PerRecord  # in units of the typical change
    weight: PerRecord


def _curve(shape: Vector) -> ImprovementCurve:
    """Height and steepness are logarithms in the search, and so always positive."""
    return ImprovementCurve(jnp.exp(shape[0]), jnp.exp(shape[1]), shape[2], shape[3])


def _astray(shape: Vector) -> Vector:
    return (shape - jnp.asarray(PRIOR_MEAN, float)) / jnp.asarray(PRIOR_SCALE, float)


def _loss(shape: Vector, data: _Data) -> Scalar:
    """Soft L1 of the residuals, and a little for what is unusual."""
    residual = (_curve(shape)(data.x) - data.y) / HUBER_DELTA
    return jnp.sum(data.weight * 2 * (jnp.sqrt(1 + residual**2) - 1)) + PRIOR_WEIGHT * jnp.sum(_astray(shape) ** 2)


def _normal_equations(shape: Vector, data: _Data) -> tuple[Vector, Square]:
    curve = _curve(shape)
    bend = jnp.tanh(curve.steepness * (data.x - curve.middle) / 2)
    slope = curve.height * (1 - bend**2) * curve.steepness / 2
    columns = (
        jnp.stack([curve.height * bend, slope * (data.x - curve.middle), -slope, jnp.ones_like(bend)]) / HUBER_DELTA
    )
    residual = (curve.height * bend + curve.level - data.y) / HUBER_DELTA
    weighted = columns * (data.weight / jnp.sqrt(1 + residual**2))
    doubt = PRIOR_WEIGHT / jnp.asarray(PRIOR_SCALE, float)
    return weighted @ residual + doubt * _astray(shape), weighted @ columns.T + jnp.diag(
        doubt / jnp.asarray(PRIOR_SCALE, float)
    )


def _solve(matrix: Square, vector: Vector) -> Vector:
    """Gauss elimination, written out: a positive definite matrix needs no pivots, and a library's solver no thread."""
    rows = jnp.concatenate([matrix, vector[:, None]], axis=1)
    for k in range(len(vector)):
        row = rows[k] / rows[k, k]
        rows = rows - (rows[:, k] - jnp.eye(len(vector))[k])[:, None] * row
    return rows[:, -1]


def _weighted_median(values: PerRecord, weight: PerRecord) -> Scalar:
    """The least value with half of the weight at or below it; 0 where nothing has any weight."""
    order = jnp.argsort(values)
    below = jnp.cumsum(weight[order])
    middle = jnp.argmax(below >= 0.5 * below[-1])
    return jnp.where(below[-1] > 0, values[order][middle], 0.0)
