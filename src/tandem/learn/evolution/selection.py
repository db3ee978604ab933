"""Who mates and who survives: MOEA/D and NSGA-II on vectors of numbers, whatever these stand for.

A population has a fixed number of members. In each generation every member's place brings forth one child; all children
are judged in one call, then the survivors among both are chosen. Everything is maximised.
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
Aside = TypeVar("Aside")
MIN_SPAN = 1e-6  # range of an objective, as a share of its values, that is still a range
PARENTS = 3


class Offspring(NamedTuple):
    """The children of a generation."""

    genes: Pool
    base: Int[Array, " members"]  # the parent each is a variation of


class GenerationResult(NamedTuple):
    """What came of one."""

    genes: Pool
    points: Points
    brood: Offspring
    judged: Points  # what the brood was found to be worth
    survivors: Int[Array, " members"]  # from the parents, then the brood, who is now in each place


class Selection(eqx.Module):
    """A way to choose parents and survivors."""

    @abstractmethod
    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """For every child its base and two others."""

    @abstractmethod
    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        """Which of a population that was just judged for the first time goes to each place."""

    @abstractmethod
    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        """Who takes each place, given the points of the parents and then of their children."""


def run_generation(
    selection: Selection,
    variation: VariationOperator,
    evaluate: Callable[[Offspring], tuple[Points, Aside]],
    genes: Pool,
    points: Points,
    key: RandomKey,
) -> tuple[GenerationResult, Aside]:
    """Breed, judge, select. A population without points is judged as it is: the first generation is itself.

    ``evaluate`` returns the points of a brood and whatever else it has to say, which is handed on.
    """
    parent_key, vary_key, survive_key = jax.random.split(key, 3)
    members = genes.shape[0]
    first = ~jnp.any(jnp.isfinite(points))
    chosen = selection.parents(points, parent_key)
    keys = jax.random.split(vary_key, members)
    children = jax.vmap(variation)(genes[chosen[:, 0]], genes[chosen[:, 1]], genes[chosen[:, 2]], keys)
    brood = Offspring(jnp.where(first, genes, children), jnp.where(first, jnp.arange(members), chosen[:, 0]))
    judged, aside = evaluate(brood)
    everyone, both = jnp.concatenate([genes, brood.genes]), jnp.concatenate([points, judged])
    kept = jnp.where(first, members + selection.initial_assignment(judged), selection.survivors(both, survive_key))
    return GenerationResult(everyone[kept], both[kept], brood, judged, kept), aside


class NonDominatedSorting(Selection):
    """NSGA-II (Deb et al., 2002): by rank, and within a rank by crowding distance."""

    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """Each the better of two drawn at random."""
        members = points.shape[0]
        order = _best_first(points)
        standing = jnp.zeros(members, jnp.int32).at[order].set(jnp.arange(members, dtype=jnp.int32))
        drawn = jax.random.randint(key, (2, members, PARENTS), 0, members)
        return jnp.where(standing[drawn[0]] <= standing[drawn[1]], drawn[0], drawn[1])

    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        return jnp.arange(points.shape[0])

    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        return _best_first(points)[: points.shape[0] // 2]


def _best_first(points: Points) -> Int[Array, " points"]:
    ranks = pareto_rank(points)
    return jnp.lexsort((-crowding_per_front(points, ranks), ranks))


class Decomposition(Selection):
    """MOEA/D (Zhang and Li, 2007; Li and Zhang, 2009): a subproblem for each weight, which mates with its neighbours.

    A subproblem minimises Tchebycheff's max_i w_i (z*_i - z_i), with objectives on the scale of the front as it is,
    from the best value to the worst of the non-dominated. A child takes the place of at most ``replaced`` neighbours
    that it is better for, so that one good child does not become a whole neighbourhood. All children of a generation
    are judged before any takes a place.
    """

    weights: Float[Array, "members 3"]
    neighbours: Int[Array, "members near"]  # of each, itself first
    nearby: Scalar | float  # probability that a mate is a neighbour, not anyone
    replaced: int = eqx.field(static=True)

    @classmethod
    def init(cls, weights: ArrayLike, neighbours: int = 20, nearby: float = 0.9, replaced: int = 2) -> Decomposition:
        """With the nearest weights as neighbours."""
        rows = np.asarray(weights, np.float64)
        distance = np.linalg.norm(rows[:, None] - rows[None], axis=-1)
        np.fill_diagonal(distance, -1.0)
        near = np.argsort(np.round(distance, 9), axis=1, kind="stable")[:, :neighbours]
        return cls(jnp.asarray(rows, float), jnp.asarray(near, jnp.int32), nearby, replaced)

    def parents(self, points: Points, key: RandomKey) -> Int[Array, "members 3"]:
        """Oneself, and two different others from the neighbourhood, or sometimes from anywhere."""
        members = points.shape[0]
        choice_key, near_key, far_key = jax.random.split(key, 3)
        places, near = jnp.arange(members), self.neighbours.shape[1]
        # The others, wherever one stands, are 1 to members - 1 places further on, in a circle.
        steps = 1 + _two_of_each(far_key, members, members - 1)
        mates = jnp.where(
            jax.random.bernoulli(choice_key, self.nearby, (members, 1)),
            jnp.take_along_axis(self.neighbours, 1 + _two_of_each(near_key, members, near - 1), axis=1),
            (places[:, None] + steps) % members,
        )
        return jnp.concatenate([places[:, None], mates], axis=1)

    def initial_assignment(self, points: Points) -> Int[Array, " members"]:
        return jnp.argmin(self._costs(points), axis=1)

    def survivors(self, points: Points, key: RandomKey) -> Int[Array, " members"]:
        members = self.weights.shape[0]
        cost = self._costs(points)
        order_key, near_key = jax.random.split(key)

        def one_child(held: Int[Array, " members"], turn: tuple[Array, RandomKey]) -> tuple[Array, None]:
            child, one_key = turn
            near = jax.random.permutation(one_key, self.neighbours[child])
            better = cost[near, members + child] < cost[near, held[near]]
            takes = better & (jnp.cumsum(better) <= self.replaced)
            return held.at[near].set(jnp.where(takes, members + child, held[near])), None

        order = jax.random.permutation(order_key, members)
        held, _ = jax.lax.scan(one_child, jnp.arange(members), (order, jax.random.split(near_key, members)))
        return held

    def _costs(self, points: Points) -> Float[Array, "members points"]:
        """Of every point for every subproblem."""
        short = shortfall(points)
        return jnp.max(self.weights[:, None, :] * short[None], axis=-1)


def _two_of_each(key: RandomKey, members: int, number: int) -> Int[Array, "members 2"]:
    """For every member two different numbers below this one, or one twice if there is no other."""
    first_key, second_key = jax.random.split(key)
    first = jax.random.randint(first_key, (members,), 0, number)
    further = jax.random.randint(second_key, (members,), 1, max(number, 2))
    return jnp.stack([first, (first + further) % number], axis=1)


def shortfall(points: Points, valid: Bool[Array, " points"] | None = None) -> Points:
    """How far below the ideal point each is, in each objective: 1 is as far as the nadir point. Infinite if not finite.

    The ideal is the best of each objective, the nadir the worst of each among the non-dominated. Neither is remembered:
    where points are measured with noise, the best value ever seen is one that was lucky.
    """
    best = is_nondominated(points, valid)[:, None]
    ideal = jnp.max(jnp.where(best, points, -jnp.inf), axis=0)
    nadir = jnp.min(jnp.where(best, points, jnp.inf), axis=0)
    span = jnp.maximum(ideal - nadir, MIN_SPAN * (1 + jnp.abs(ideal)))
    short = (ideal - points) / span
    return jnp.where(jnp.isfinite(points).all(axis=1, keepdims=True), short, jnp.inf)
