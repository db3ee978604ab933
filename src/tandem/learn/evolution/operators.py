"""How a child comes of its parents, when both are vectors of numbers: crossover, then polynomial mutation."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, RandomKey, Scalar

ParamVector = Float[Array, " genes"]
INDEX = 20.0  # eta of both distributions: the larger, the nearer to its parent a child is
# The standard deviation of polynomial mutation over the range 1.
DEVIATION = (2 / ((INDEX + 2) * (INDEX + 3))) ** 0.5


class VariationOperator(eqx.Module):
    """A child is its first parent, changed by what it has of the others, and by chance."""

    step: ParamVector | float  # standard deviation of a mutation, gene by gene
    rate: Scalar | float  # share of the genes that mutate
    low: ParamVector | float = -jnp.inf
    high: ParamVector | float = jnp.inf

    @abstractmethod
    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        """The first parent with something of the others."""

    def __call__(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        """One child."""
        cross_key, mutation_key = jax.random.split(key)
        return self.mutate(self.crossover(base, mate, other, cross_key), mutation_key)

    def mutate(self, genes: ParamVector, key: RandomKey) -> ParamVector:
        """The same with a share of the genes changed a little (Deb and Goyal's polynomial distribution)."""
        which_key, how_key = jax.random.split(key)
        where = jax.random.uniform(how_key, genes.shape, genes.dtype, -1.0, 1.0)
        change = jnp.sign(where) * (1 - (1 - jnp.abs(where)) ** (1 / (INDEX + 1))) * self.step / DEVIATION
        happens = jax.random.bernoulli(which_key, self.rate, genes.shape)
        return jnp.clip(genes + jnp.where(happens, change, 0.0), self.low, self.high)


class SimulatedBinaryCrossover(VariationOperator):
    """Half of the genes as Deb and Agrawal cross them: near either parent, as far apart as the parents are."""

    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        which_key, whose_key, how_key = jax.random.split(key, 3)
        where = jax.random.uniform(how_key, base.shape, base.dtype)
        ratio = jnp.where(where < 0.5, 2 * where, 0.5 / (1 - where))
        spread = ratio ** (1 / (INDEX + 1))
        side = jnp.where(jax.random.bernoulli(whose_key, 0.5, base.shape), spread, -spread)
        child = 0.5 * ((1 + side) * base + (1 - side) * mate)
        return jnp.where(jax.random.bernoulli(which_key, 0.5, base.shape), child, base)


class DifferentialEvolution(VariationOperator):
    """As in MOEA/D-DE: the first parent moved by a part of the difference between the others, in every gene."""

    factor: Scalar | float = 0.5

    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        return base + self.factor * (mate - other)
