"""Variation operators on vectors of numbers: crossover, then polynomial mutation."""

from __future__ import annotations

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.types import Array, RandomKey, Scalar

ParamVector = Float[Array, " genes"]
DISTRIBUTION_INDEX = 20.0  # eta of both distributions: the larger, the nearer a child is to its parent
# Standard deviation of polynomial mutation on a range of 1.
DEVIATION = (2 / ((DISTRIBUTION_INDEX + 2) * (DISTRIBUTION_INDEX + 3))) ** 0.5


class VariationOperator(eqx.Module):
    """An operator that makes a child: its first parent, changed by crossover with the others and by mutation."""

    step: ParamVector | float  # standard deviation of a mutation, for each gene
    rate: Scalar | float  # share of the genes that mutate
    low: ParamVector | float = -jnp.inf
    high: ParamVector | float = jnp.inf

    @abstractmethod
    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        """Combine the first parent with the others."""

    def __call__(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        """Create one child."""
        cross_key, mutation_key = jax.random.split(key)
        return self.mutate(self.crossover(base, mate, other, cross_key), mutation_key)

    def mutate(self, genes: ParamVector, key: RandomKey) -> ParamVector:
        """Change a share of the genes a little (polynomial distribution of Deb and Goyal)."""
        mask_key, change_key = jax.random.split(key)
        uniform = jax.random.uniform(change_key, genes.shape, genes.dtype, -1.0, 1.0)
        change = (
            jnp.sign(uniform) * (1 - (1 - jnp.abs(uniform)) ** (1 / (DISTRIBUTION_INDEX + 1))) * self.step / DEVIATION
        )
        mutates = jax.random.bernoulli(mask_key, self.rate, genes.shape)
        return jnp.clip(genes + jnp.where(mutates, change, 0.0), self.low, self.high)


class SimulatedBinaryCrossover(VariationOperator):
    """Crossover of half of the genes (Deb and Agrawal): near one parent, in proportion to the parents' distance."""

    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        mask_key, side_key, spread_key = jax.random.split(key, 3)
        uniform = jax.random.uniform(spread_key, base.shape, base.dtype)
        ratio = jnp.where(uniform < 0.5, 2 * uniform, 0.5 / (1 - uniform))
        spread = ratio ** (1 / (DISTRIBUTION_INDEX + 1))
        side = jnp.where(jax.random.bernoulli(side_key, 0.5, base.shape), spread, -spread)
        child = 0.5 * ((1 + side) * base + (1 - side) * mate)
        return jnp.where(jax.random.bernoulli(mask_key, 0.5, base.shape), child, base)


class DifferentialEvolution(VariationOperator):
    """Differential evolution as in MOEA/D-DE: the first parent plus a share of the difference between the others."""

    factor: Scalar | float = 0.5

    def crossover(self, base: ParamVector, mate: ParamVector, other: ParamVector, key: RandomKey) -> ParamVector:
        return base + self.factor * (mate - other)
