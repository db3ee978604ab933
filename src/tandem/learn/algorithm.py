"""What every algorithm has in common, so that one driver runs, saves and resumes them all.

An algorithm goes through stages; in each it makes a number of steps, some at a time. Its state is a tree of arrays and
a function of the seed alone, so a saved state goes on as if it had never stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from tandem.errors import InputError
from tandem.feel.system import System
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.learn.config import AlgorithmConfig
from tandem.policy.networks import ActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser, Sampling
from tandem.tree import tree_index

CHUNKS_PER_STAGE = 40  # into which a stage is cut, for progress and checkpoints


@dataclass(frozen=True)
class Stage:
    """A part of the way."""

    name: str
    chunks: int
    steps: int  # in each chunk
    rounds_per_step: int  # environment rounds, all learners together

    @classmethod
    def from_steps(cls, name: str, steps: int, rounds_per_step: int) -> Stage:
        """About this many steps, never more, in even chunks: a last one of another length would compile anew."""
        chunk = max(1, steps // CHUNKS_PER_STAGE)
        return cls(name, steps // chunk, chunk, rounds_per_step)

    @property
    def rounds(self) -> int:
        """Environment rounds of the whole stage."""
        return self.chunks * self.steps * self.rounds_per_step


class ChunkMetrics(eqx.Module):
    """What a chunk of steps was like."""

    points: Float[Array, "points 3"]  # mean rewards: of the archive, or of the episodes just played
    valid: Bool[Array, " points"]
    violation_rate: Scalar
    # Of learners by PPO; 0 where there are none.
    entropy: Scalar | float = 0.0
    value_error: Scalar | float = 0.0
    clipped: Scalar | float = 0.0


class Candidates(eqx.Module):
    """Policies that may go into the front. Several may share a network and differ in the preference they follow."""

    networks: ActorCritic  # stacked
    normalisers: ObservationNormaliser  # stacked
    owner: Int[Array, " candidates"]  # whose network
    preferences: Float[Array, "candidates 3"]
    stage: Int[Array, " candidates"]  # in which each came to be
    objective: Int[Array, " candidates"]  # which it was to improve there, -1 if it followed its preference
    valid: Bool[Array, " candidates"]

    @classmethod
    def from_networks(
        cls,
        networks: ActorCritic,
        normalisers: ObservationNormaliser,
        preferences: Float[Array, "candidates 3"],
        valid: Bool[Array, " candidates"],
    ) -> Candidates:
        """With a network each, all from the first stage."""
        count = valid.shape[0]
        first, nothing = jnp.zeros(count, jnp.int32), jnp.full(count, -1, jnp.int32)
        return cls(networks, normalisers, jnp.arange(count), preferences, first, nothing, valid)


class Algorithm(ABC):
    """A way from a scenario to a front."""

    name: ClassVar[str]
    summary: ClassVar[str]
    config_type: ClassVar[type[AlgorithmConfig]]
    presets: ClassVar[dict[str, dict[str, Any]]]
    sampling: ClassVar[Sampling] = "deterministic"  # what its policies leave to chance when they are used

    def __init__(self, system: System, options: AlgorithmConfig, systems: tuple[System, ...] = ()) -> None:
        """For a fleet, and, if it can train on several sizes of it, those."""
        self.system = system
        self.config = options
        self.systems = systems or (system,)

    @property
    @abstractmethod
    def stages(self) -> tuple[Stage, ...]:
        """The whole way, planned so that the budget of rounds is kept, validation included."""

    @property
    @abstractmethod
    def max_candidates(self) -> int:
        """The largest number of policies that will have to be validated."""

    @abstractmethod
    def init_network(self, key: RandomKey) -> ActorCritic:
        """A fresh network of the kind it trains."""

    @abstractmethod
    def init(self, key: RandomKey) -> Any:
        """The state before the first step."""

    def begin_stage(self, stage: int, state: Any) -> Any:
        """The state as a stage after the first finds it: as the one before left it, unless an algorithm says otherwise.

        Pure, so that the shape of it can be known without running it.
        """
        return state

    @abstractmethod
    def run_chunk(self, stage: int, state: Any) -> tuple[Any, ChunkMetrics]:
        """Make one chunk of steps."""

    @abstractmethod
    def candidates(self, state: Any) -> Candidates:
        """What has been found so far."""

    def policy(self, network: ActorCritic, normaliser: ObservationNormaliser, preference: Array) -> NeuralPolicy:
        """What it trained, in the form that is used; or a stack of them."""
        largest = max(system.size for system in self.systems)
        return NeuralPolicy(network, normaliser, preference, self.sampling, largest)

    def policies(self, candidates: Candidates) -> NeuralPolicy:
        """A stack of policies, one for each candidate."""
        owner = candidates.owner
        return self.policy(
            tree_index(candidates.networks, owner), tree_index(candidates.normalisers, owner), candidates.preferences
        )

    @property
    def validation_rounds(self) -> int:
        """The rounds kept for validation."""
        return self.max_candidates * self.config.validation_episodes * self.system.rounds

    def steps_within_budget(self, rounds: int, rounds_per_step: int, stage: str) -> int:
        """How many steps fit, at least one."""
        steps = rounds // rounds_per_step
        if steps < 1:
            needed = self.validation_rounds + rounds_per_step
            raise InputError(
                f"budget is {self.config.budget}, too few for one step of {stage} ({rounds_per_step} rounds) after "
                f"validation ({self.validation_rounds} rounds); give {needed} or more, or smaller steps."
            )
        return int(steps)
