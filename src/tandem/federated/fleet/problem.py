"""What every process of a fleet knows without being told: the scenario, the seed, and what follows from them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import jax

from tandem.errors import InputError
from tandem.federated.truth import FederatedTruth
from tandem.feel.env import TRUTH
from tandem.feel.system import System
from tandem.feel.types import RandomKey
from tandem.runs.simulation import episode_keys


@dataclass(frozen=True)
class Problem:
    """A fleet with a task. The same scenario and seed give the same world in every process."""

    system: System  # without the task: what the server plans with
    task: FederatedTruth
    fleet_key: RandomKey  # of the simulator's episode with this seed
    policy_key: RandomKey

    @property
    def episode_key(self) -> RandomKey:
        """What the channel and the arrivals of a round come from, as in ``feel.env``."""
        return jax.random.split(self.fleet_key)[1]

    @property
    def world_key(self) -> RandomKey:
        """What the devices' requests come from."""
        return jax.random.fold_in(self.fleet_key, TRUTH)


def problem_of(system: System, seed: int) -> Problem:
    """The fleet of a system that has a task."""
    if not isinstance(system.truth, FederatedTruth):
        raise InputError("accuracy.task: a fleet needs models to run; name a task, such as --task digits.")
    fleet_key, policy_key = jax.random.split(episode_keys([seed])[0])
    return Problem(dataclasses.replace(system, truth=None), system.truth, fleet_key, policy_key)
