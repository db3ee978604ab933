"""A network as a policy: with the normalisation it was trained with, and the preference it is to follow."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.shield import keep_most, uplink_room
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import RandomKey
from tandem.policy.distributions import Draw, FleetDistribution
from tandem.policy.features import CONSTANTS, Inputs, network_inputs
from tandem.policy.networks import Judgement, Network, Preference
from tandem.policy.running_stats import Moments

# What is left to chance when a policy decides: nothing when deployed, modes alone for one that tosses coins for them.
Sampling = Literal["nothing", "modes", "everything"]


class Normaliser(eqx.Module):
    """What the inputs of a network have looked like. Devices share their moments, so it fits a fleet of any size."""

    devices: Moments
    constants: Moments
    fleet: Moments

    @classmethod
    def unseen(cls, inputs: Inputs) -> Normaliser:
        """For inputs like these, before any was seen."""
        return cls(
            Moments.unseen(inputs.devices.shape[-1]), Moments.unseen(CONSTANTS), Moments.unseen(inputs.fleet.shape[-1])
        )

    def with_seen(self, inputs: Inputs) -> Normaliser:
        """With a batch of inputs, [..., devices, features], added."""
        return Normaliser(
            self.devices.with_seen(inputs.devices),
            self.constants.with_seen(inputs.constants),
            self.fleet.with_seen(inputs.fleet),
        )

    def standardised(self, inputs: Inputs) -> Inputs:
        """The inputs as the network is to see them."""
        return Inputs(
            self.devices.standardised(inputs.devices),
            self.constants.standardised(inputs.constants),
            self.fleet.standardised(inputs.fleet),
            inputs.may_train,
        )


class NeuralPolicy(eqx.Module):
    """Decides with a network. Deterministic unless told to sample; runs wherever a hand-written rule does."""

    network: Network
    normaliser: Normaliser
    preference: Preference
    sampling: Sampling = eqx.field(static=True, default="nothing")
    largest_fleet: int | None = eqx.field(static=True, default=None)  # that it was trained on, if known

    @classmethod
    def untrained(
        cls, network: Network, system: System, state: FleetState, sampling: Sampling = "nothing"
    ) -> NeuralPolicy:
        """A policy that has seen nothing, with equal preferences."""
        inputs = network_inputs(system, state)
        return cls(network, Normaliser.unseen(inputs), jnp.full(3, 1 / 3), sampling)

    def judge(self, inputs: Inputs) -> Judgement:
        """The network's view of raw inputs."""
        return self.network(self.normaliser.standardised(inputs), self.preference)

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        inputs = network_inputs(system, state)
        decide = self.judge(inputs).decide
        drawn, likeliest = decide.sample(key, inputs.may_train), decide.most_likely(inputs.may_train)
        match self.sampling:
            case "nothing":
                return (_with_room(system, decide, likeliest) if self._is_crowded(system) else likeliest).action()
            case "modes":
                return Draw(drawn.train, likeliest.power_logit, likeliest.frequency_logit).action()
            case "everything":
                return drawn.action()

    def _is_crowded(self, system: System) -> bool:
        return self.largest_fleet is not None and system.size > self.largest_fleet and system.shielded


def _with_room(system: System, decide: FleetDistribution, likeliest: Draw) -> Draw:
    """The decision with no more trainers than the uplink has room for, those the policy is surest of.

    Left to it, the shield would keep those with most data. In fleets of the sizes that it was trained on a policy has
    learned to count on that; in a larger one it asks for many more than there is room for.
    """
    train = keep_most(likeliest.train, jnp.maximum(decide.mode_logit, 0.0), uplink_room(system, likeliest.train))
    return Draw(train, likeliest.power_logit, likeliest.frequency_logit)
