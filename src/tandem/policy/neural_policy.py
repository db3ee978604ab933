"""A network as a policy: with the normalisation it was trained with, and the preference it is to follow."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.shield import top_k_mask, uplink_room
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import RandomKey
from tandem.policy.distributions import ActionDistribution, RawAction
from tandem.policy.features import NUM_CONSTANTS, Features, extract_features
from tandem.policy.networks import ActorCritic, ActorCriticOutput, Preference
from tandem.policy.running_stats import RunningStats

# What is left to chance when a policy decides: nothing when deployed, modes alone for one that tosses coins for them.
Sampling = Literal["deterministic", "sample-modes", "stochastic"]


class ObservationNormaliser(eqx.Module):
    """What the inputs of a network have looked like. Devices share their moments, so it fits a fleet of any size."""

    devices: RunningStats
    constants: RunningStats
    fleet: RunningStats

    @classmethod
    def init(cls, inputs: Features) -> ObservationNormaliser:
        """For inputs like these, before any was seen."""
        return cls(
            RunningStats.init(inputs.devices.shape[-1]),
            RunningStats.init(NUM_CONSTANTS),
            RunningStats.init(inputs.fleet.shape[-1]),
        )

    def update(self, inputs: Features) -> ObservationNormaliser:
        """With a batch of inputs, [..., devices, features], added."""
        return ObservationNormaliser(
            self.devices.update(inputs.devices),
            self.constants.update(inputs.constants),
            self.fleet.update(inputs.fleet),
        )

    def normalise(self, inputs: Features) -> Features:
        """The inputs as the network is to see them."""
        return Features(
            self.devices.normalise(inputs.devices),
            self.constants.normalise(inputs.constants),
            self.fleet.normalise(inputs.fleet),
            inputs.action_mask,
        )


class NeuralPolicy(eqx.Module):
    """Decides with a network. Deterministic unless told to sample; runs wherever a hand-written rule does."""

    network: ActorCritic
    normaliser: ObservationNormaliser
    preference: Preference
    sampling: Sampling = eqx.field(static=True, default="deterministic")
    largest_fleet: int | None = eqx.field(static=True, default=None)  # that it was trained on, if known

    @classmethod
    def init(
        cls, network: ActorCritic, system: System, state: FleetState, sampling: Sampling = "deterministic"
    ) -> NeuralPolicy:
        """A policy that has seen nothing, with equal preferences."""
        inputs = extract_features(system, state)
        return cls(network, ObservationNormaliser.init(inputs), jnp.full(3, 1 / 3), sampling)

    def forward(self, inputs: Features) -> ActorCriticOutput:
        """The network's view of raw inputs."""
        return self.network(self.normaliser.normalise(inputs), self.preference)

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        inputs = extract_features(system, state)
        decide = self.forward(inputs).action_dist
        drawn, likeliest = decide.sample(key, inputs.action_mask), decide.mode(inputs.action_mask)
        match self.sampling:
            case "deterministic":
                return (_with_room(system, decide, likeliest) if self._is_crowded(system) else likeliest).action()
            case "sample-modes":
                return RawAction(drawn.train, likeliest.power_logit, likeliest.frequency_logit).action()
            case "stochastic":
                return drawn.action()

    def _is_crowded(self, system: System) -> bool:
        return self.largest_fleet is not None and system.size > self.largest_fleet and system.shielded


def _with_room(system: System, decide: ActionDistribution, likeliest: RawAction) -> RawAction:
    """The decision with no more trainers than the uplink has room for, those the policy is surest of.

    Left to it, the shield would keep those with most data. In fleets of the sizes that it was trained on a policy has
    learned to count on that; in a larger one it asks for many more than there is room for.
    """
    train = top_k_mask(likeliest.train, jnp.maximum(decide.mode_logit, 0.0), uplink_room(system, likeliest.train))
    return RawAction(train, likeliest.power_logit, likeliest.frequency_logit)
