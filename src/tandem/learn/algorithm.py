"""The interface of multi-objective algorithms, by which one loop trains, saves and resumes all of them.

An algorithm runs through stages of training steps, a chunk of steps at a time. Its state is a tree of arrays and a
function of the seed alone, so that a saved state can be continued as if training had not stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.errors import InputError
from tandem.feel.environment import Environment
from tandem.feel.types import Array, RandomKey
from tandem.learn.config import AlgorithmConfig
from tandem.learn.ppo.ppo import TrainingMetrics
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser, Sampling
from tandem.tree import tree_index

NO_OBJECTIVE = -1  # index of the objective to improve, for a policy that follows its preference instead
CHUNKS_PER_STAGE = 40  # of a stage with that many steps or more, for progress and checkpoints


@dataclass(frozen=True)
class Stage:
    """One stage of training."""

    name: str
    chunks: int
    steps: int  # in each chunk
    rounds_per_step: int  # environment rounds of all policies together
    rounds_before: int = 0  # environment rounds before the first step, such as those that evaluate an archive

    @classmethod
    def from_steps(cls, name: str, steps: int, rounds_per_step: int, rounds_before: int = 0) -> Stage:
        """Divide steps into chunks of equal length, without the remainder, since another length would compile again."""
        chunk = max(1, steps // CHUNKS_PER_STAGE)
        return cls(name, steps // chunk, chunk, rounds_per_step, rounds_before)

    @property
    def total_steps(self) -> int:
        """The number of steps of the whole stage."""
        return self.chunks * self.steps

    @property
    def rounds(self) -> int:
        """The number of environment rounds of the whole stage."""
        return self.rounds_before + self.total_steps * self.rounds_per_step


class ChunkResult(eqx.Module):
    """The front and the metrics after a chunk of steps."""

    points: Float[Array, "points 3"]  # mean rewards: of the archive, or of the episodes of the chunk
    valid: Bool[Array, " points"]
    metrics: TrainingMetrics


class Candidates(eqx.Module):
    """Policies that may become part of the front. Several may share a network and differ in their preference."""

    networks: ActorCritic  # stacked
    normalisers: ObservationNormaliser  # stacked
    owner: Int[Array, " candidates"]  # index of the candidate's network
    preferences: Float[Array, "candidates 3"]
    stage: Int[Array, " candidates"]  # in which the candidate was trained
    objective: Int[Array, " candidates"]  # that it was trained to improve, or NO_OBJECTIVE
    valid: Bool[Array, " candidates"]

    @classmethod
    def from_networks(
        cls,
        networks: ActorCritic,
        normalisers: ObservationNormaliser,
        preferences: Float[Array, "candidates 3"],
        valid: Bool[Array, " candidates"],
    ) -> Candidates:
        """Create candidates with one network each, all trained in the first stage."""
        count = valid.shape[0]
        stage, objective = jnp.zeros(count, jnp.int32), jnp.full(count, NO_OBJECTIVE, jnp.int32)
        return cls(networks, normalisers, jnp.arange(count), preferences, stage, objective, valid)


class Algorithm(ABC):
    """Base class of multi-objective algorithms."""

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: ClassVar[type[AlgorithmConfig]]
    presets: ClassVar[dict[str, dict[str, Any]]]
    conditioned: ClassVar[bool] = False  # whether one network takes any preference as an input
    sampling: ClassVar[Sampling] = "deterministic"  # the sampled part of an action when its policies are deployed

    def __init__(
        self, environment: Environment, config: AlgorithmConfig, environments: tuple[Environment, ...] = ()
    ) -> None:
        """Prepare training in ``environment``, or in ``environments``, if the algorithm can use several fleet sizes.

        Raises InputError if the budget is too small.
        """
        self.environment = environment
        self.environments = environments or (environment,)
        self.config = config
        self.stages = self.plan_stages()

    @abstractmethod
    def plan_stages(self) -> tuple[Stage, ...]:
        """Divide the budget, without the rounds for validation, into stages. Raises InputError if it is too small."""

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """The largest number of policies to validate."""

    @abstractmethod
    def init_network(self, key: RandomKey) -> ActorCritic:
        """Create an untrained network of the kind that the algorithm trains."""

    @abstractmethod
    def init(self, key: RandomKey) -> Any:
        """Create the state before the first step."""

    def begin_stage(self, stage: int, state: Any) -> Any:
        """Convert the last state of a stage into the first state of the next, ``stage``; by default they are the same.

        The function is pure, so that its result's shape is known without running it.
        """
        return state

    @abstractmethod
    def run_chunk(self, stage: int, state: Any) -> tuple[Any, ChunkResult]:
        """Run one chunk of steps."""

    @abstractmethod
    def candidates(self, state: Any) -> Candidates:
        """Return the candidates for the front."""

    def policies(self, candidates: Candidates) -> NeuralPolicy:
        """Return the policies of the candidates as a stack."""
        owner = candidates.owner
        return self.policy(
            tree_index(candidates.networks, owner), tree_index(candidates.normalisers, owner), candidates.preferences
        )

    def policy(self, network: ActorCritic, normaliser: ObservationNormaliser, preference: Array) -> NeuralPolicy:
        """Return a policy in the form in which it is deployed, or a stack of them."""
        largest = max(environment.size for environment in self.environments)
        return NeuralPolicy(network, normaliser, preference, self.sampling, largest)

    @property
    def validation_rounds(self) -> int:
        """The number of environment rounds reserved for validation."""
        return self.max_candidates * self.config.validation_episodes * self.environment.rounds

    @property
    def training_rounds(self) -> int:
        """The number of environment rounds of all stages."""
        return sum(stage.rounds for stage in self.stages)

    def steps_within_budget(self, rounds: int, rounds_per_step: int, stage: str) -> int:
        """Return how many steps fit into these rounds. Raises InputError if not even one does."""
        steps = rounds // rounds_per_step
        if steps < 1:
            needed = self.validation_rounds + rounds_per_step
            raise InputError(
                f"budget is {self.config.budget}, too few rounds for one step of {stage} ({rounds_per_step} rounds) "
                f"after validation ({self.validation_rounds} rounds); give {needed} or more, or make steps smaller."
            )
        return int(steps)
