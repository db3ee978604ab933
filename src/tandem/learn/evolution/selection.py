"""Selection of parents and survivors in MOEA/D and NSGA-II, on vectors of numbers.

A population has a fixed number of members. In each generation every slot of the population produces one child; all
children are evaluated in one call, then the survivors among parents and children are selected. All objectives are
maximised.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.evolution.operators import VariationOperator
from tandem.pareto import crowding_per_front, is_nondominated, pareto_rank

Pool = Float[Array, "members genes"]
Points = Float[Array, "points 3"]
Extra = TypeVar("Extra")
MIN_SPAN = 1e-6  # smallest range of an objective, relative to its values
PARENTS = 3


class Offspring(NamedTuple):
    """The children of a generation."""

    genes: Pool
    base: Int[Array, " members"]  # the first parent of each


class GenerationResult(NamedTuple):
    """The population after a generation."""

    genes: Pool
    points: Points
    offspring: Offspring
    offspring_points: Points
    survivors: Int[Array, " members"]  # index of each slot's new member among the parents, then the offspring


class Selection(eqx.Module):
    """Base class of selection schemes."""

    @abstractmethod
    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """Return for every child its first parent and two others."""

    @abstractmethod
    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        """Assign the members of the first generation to slots."""

    @abstractmethod
    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        """Return the new member of each slot, given the points of the parents and then of the children."""


def run_generation(
    selection: Selection,
    variation: VariationOperator,
    evaluate: Callable[[Offspring], tuple[Points, Extra]],
    genes: Pool,
    points: Points,
    key: RandomKey,
) -> tuple[GenerationResult, Extra]:
    """Produce children, evaluate them, and select survivors.

    A population without points is only evaluated: it is its own first generation. ``evaluate`` returns the points of
    the offspring and anything else, which is returned as well.
    """
    parent_key, vary_key, survive_key = jax.random.split(key, 3)
    members = genes.shape[0]
    first = ~jnp.any(jnp.isfinite(points))
    parents = selection.parents(points, parent_key)
    keys = jax.random.split(vary_key, members)
    children = jax.vmap(variation)(genes[parents[:, 0]], genes[parents[:, 1]], genes[parents[:, 2]], keys)
    offspring = Offspring(jnp.where(first, genes, children), jnp.where(first, jnp.arange(members), parents[:, 0]))
    new_points, extra = evaluate(offspring)
    all_genes, all_points = jnp.concatenate([genes, offspring.genes]), jnp.concatenate([points, new_points])
    assigned = members + selection.initial_assignment(new_points)
    survivors = jnp.where(first, assigned, selection.survivors(all_points, survive_key))
    return GenerationResult(all_genes[survivors], all_points[survivors], offspring, new_points, survivors), extra


class NonDominatedSorting(Selection):
    """NSGA-II (Deb et al., 2002): by rank, and within a rank by crowding distance."""

    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """Return parents by binary tournaments: each is the better of two random members."""
        members = points.shape[0]
        order = _best_first(points)
        position = jnp.zeros(members, jnp.int32).at[order].set(jnp.arange(members, dtype=jnp.int32))
        pairs = jax.random.randint(key, (2, members, PARENTS), 0, members)
        return jnp.where(position[pairs[0]] <= position[pairs[1]], pairs[0], pairs[1])

    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        return jnp.arange(points.shape[0])

    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        return _best_first(points)[: points.shape[0] // 2]


def _best_first(points: Points) -> Int[Array, " points"]:
    ranks = pareto_rank(points)
    return jnp.lexsort((-crowding_per_front(points, ranks), ranks))


class Decomposition(Selection):
    """MOEA/D (Zhang and Li, 2007; Li and Zhang, 2009): one subproblem for each weight, which mates with its neighbours.

    A subproblem minimises Tchebycheff's max_i w_i (z*_i - z_i), with objectives scaled by the current front, from the
    best value to the worst of the non-dominated. A child replaces at most ``max_replaced`` neighbours for which it is
    better, so that one good child does not fill a whole neighbourhood. All children of a generation are evaluated
    before any replaces a member.
    """

    weights: Float[Array, "members 3"]
    neighbours: Int[Array, "members near"]  # of each subproblem, itself first
    neighbour_prob: Scalar | float  # probability that a mate is a neighbour, and not any member
    max_replaced: int = eqx.field(static=True)

    @classmethod
    def init(
        cls, weights: ArrayLike, neighbours: int = 20, neighbour_prob: float = 0.9, max_replaced: int = 2
    ) -> Decomposition:
        """Create the scheme, with the nearest weights as neighbours."""
        rows = np.asarray(weights, np.float64)
        distance = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
        np.fill_diagonal(distance, -1.0)
        near = np.argsort(np.round(distance, 9), axis=1, kind="stable")[:, :neighbours]
        return cls(jnp.asarray(rows, float), jnp.asarray(near, jnp.int32), neighbour_prob, max_replaced)

    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """Return each member, and two different others from its neighbourhood or, sometimes, from the population."""
        members = points.shape[0]
        choice_key, near_key, far_key = jax.random.split(key, 3)
        indices, near = jnp.arange(members), self.neighbours.shape[1]
        # The other members are 1 to members - 1 slots further, modulo the number of members.
        steps = 1 + _two_different(far_key, members, members - 1)
        mates = jnp.where(
            jax.random.bernoulli(choice_key, self.neighbour_prob, (members, 1)),
            jnp.take_along_axis(self.neighbours, 1 + _two_different(near_key, members, near - 1), axis=1),
            (indices[:, None] + steps) % members,
        )
        return jnp.concatenate([indices[:, None], mates], axis=1)

    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        return jnp.argmin(self._costs(points), axis=1)

    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        members = self.weights.shape[0]
        cost = self._costs(points)
        order_key, near_key = jax.random.split(key)

        def place_child(slots: Int[Array, " members"], child_and_key: tuple[Array, RandomKey]) -> tuple[Array, None]:
            child, child_key = child_and_key
            near = jax.random.permutation(child_key, self.neighbours[child])
            better = cost[near, members + child] < cost[near, slots[near]]
            replaces = better & (jnp.cumsum(better) <= self.max_replaced)
            return slots.at[near].set(jnp.where(replaces, members + child, slots[near])), None

        order = jax.random.permutation(order_key, members)
        slots, _ = jax.lax.scan(place_child, jnp.arange(members), (order, jax.random.split(near_key, members)))
        return slots

    def _costs(self, points: Points) -> Float[Array, "members points"]:
        """Return the cost of every point in every subproblem."""
        return jnp.max(self.weights[:, None, :] * shortfall(points)[None], axis=-1)


def _two_different(key: RandomKey, members: int, number: int) -> Int[Array, "members 2"]:
    """Sample for every member two different integers below ``number``, or the same one twice if there is only one."""
    first_key, second_key = jax.random.split(key)
    first = jax.random.randint(first_key, (members,), 0, number)
    further = jax.random.randint(second_key, (members,), 1, max(number, 2))
    return jnp.stack([first, (first + further) % number], axis=1)


def shortfall(points: Points, valid: Bool[Array, " points"] | None = None) -> Points:
    """Return how far each point is below the ideal point, relative to the nadir point; infinite if it is not finite.

    The ideal point has the best value of each objective, the nadir point the worst among the non-dominated points. Both
    are those of the current points: with noisy evaluations, the best value of all generations is an outlier.
    """
    best = is_nondominated(points, valid)[:, None]
    ideal = jnp.max(jnp.where(best, points, -jnp.inf), axis=0)
    nadir = jnp.min(jnp.where(best, points, jnp.inf), axis=0)
    span = jnp.maximum(ideal - nadir, MIN_SPAN * (1 + jnp.abs(ideal)))
    return jnp.where(jnp.isfinite(points).all(axis=1, keepdims=True), (ideal - points) / span, jnp.inf)
