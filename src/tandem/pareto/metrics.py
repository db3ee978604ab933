"""Quality of a front besides its hypervolume: sparsity, expected utility and cardinality.

Functions without a mask run on the host, in double precision; there, points that are not finite do not count. Fronts
are comparable only on a common scale, so functions that normalise take the ranges as an argument (such as
``Ranges.from_points`` of the union of the fronts).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool
from numpy.typing import ArrayLike

from tandem.objectives import NUM_OBJECTIVES
from tandem.pareto.dominance import dominates, is_nondominated, valid_mask
from tandem.pareto.points import HostPoints, Ranges, as_points, finite_rows, nondominated_indices, normalise
from tandem.pareto.types import Array, Candidates, Mask, PerCandidate, PerPoint, Points3


def sparsity(points: ArrayLike, ranges: Ranges | None = None) -> float:
    """Compute SP = 1/(|Psi|-1) sum_i sum_l (Z_i(l+1) - Z_i(l))^2 over sorted values; 0 for fewer than two points.

    The paper's sum adds objectives in their own units, so the one with the largest numbers dominates it. This is the
    default; with ``ranges`` the sum is taken over normalised objectives. Dominated points are not removed.
    """
    rows = _finite(points) if ranges is None else normalise(_finite(points), ranges)
    if len(rows) < 2:
        return 0.0
    gaps = np.diff(np.sort(rows, axis=0), axis=0)
    return float(np.sum(gaps**2) / (len(rows) - 1))


def expected_utility(points: ArrayLike, weights: ArrayLike, ranges: Ranges) -> float:
    """Compute EU = mean over w of max over z of w . z, with z normalised: the mean utility for a random preference.

    NaN for a front without points.
    """
    rows = normalise(_finite(points), ranges)
    if len(rows) == 0:
        return float("nan")
    return float(np.mean(np.max(as_points(weights) @ rows.T, axis=1)))


def cardinality(points: ArrayLike) -> int:
    """Return the number of different non-dominated points."""
    return len(nondominated_indices(points))


def _finite(points: ArrayLike) -> HostPoints:
    rows = as_points(points)
    return rows[finite_rows(rows)].reshape(-1, NUM_OBJECTIVES)


@jax.jit
def sparsity_if_added(points: Points3, valid: Mask | None, candidates: Candidates) -> PerCandidate:
    """Compute SP of the non-dominated points of the set with one candidate added, for each candidate; O(n) each.

    The points are sorted once for all candidates. As in ``sparsity``, a set of fewer than two points has SP = 0.
    """
    alive = is_nondominated(points, valid)
    beaten = dominates(candidates[:, None], points[None]) & valid_mask(candidates)[:, None]
    left = alive & ~beaten
    enters = valid_mask(candidates) & ~jnp.any(alive & jnp.all(points >= candidates[:, None], axis=-1), axis=1)
    squares = sum(_squared_gaps(points[:, i], left, candidates[:, i], enters) for i in range(points.shape[1]))
    size = jnp.sum(left, axis=1) + enters
    return jnp.where(size > 1, squares / jnp.maximum(size - 1, 1), 0.0)


def _squared_gaps(
    values: PerPoint, left: Bool[Array, "candidates points"], new: PerCandidate, enters: Bool[Array, " candidates"]
) -> PerCandidate:
    """Return the sum of squared gaps between the values that are left, with the new value if it enters."""
    order = jnp.argsort(values)
    ascending, left = values[order], left[:, order]
    highest = jax.lax.cummax(jnp.where(left, ascending, -jnp.inf), axis=1)
    before = jnp.pad(highest[:, :-1], ((0, 0), (1, 0)), constant_values=-jnp.inf)
    squares = jnp.sum(jnp.where(left & jnp.isfinite(before), ascending - before, 0.0) ** 2, axis=1)

    value = new[:, None]
    below = jnp.max(jnp.where(left & (ascending <= value), ascending, -jnp.inf), axis=1)
    above = jnp.min(jnp.where(left & (ascending > value), ascending, jnp.inf), axis=1)
    down, up = (jnp.where(jnp.isfinite(bound), jnp.abs(new - bound), 0.0) for bound in (below, above))
    # A new value inside a gap splits it: (down + up)^2 becomes down^2 + up^2.
    splits = jnp.isfinite(below) & jnp.isfinite(above)
    return squares + jnp.where(enters, jnp.where(splits, -2 * down * up, down**2 + up**2), 0.0)
