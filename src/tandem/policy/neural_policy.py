"""A network as a policy: with the normalisation it was trained with, and the preference it follows."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.environment import Environment
from tandem.feel.shield import FIRST, top_k_mask, uplink_room
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import ActionMask, RandomKey
from tandem.policy.distributions import ActionDistribution, RawAction
from tandem.policy.features import Features, extract_features
from tandem.policy.networks import ActorCritic, ActorCriticOutput, Preference
from tandem.policy.running_stats import RunningStats

# The sampled part of an action: nothing when deployed, only the modes, or all of it as in training.
Sampling = Literal["deterministic", "sample-modes", "stochastic"]


class ObservationNormaliser(eqx.Module):
    """Running statistics of a network's inputs. Devices share them, so that they fit a fleet of any size."""

    devices: RunningStats
    constants: RunningStats
    fleet: RunningStats

    @classmethod
    def init(cls, features: Features) -> ObservationNormaliser:
        """Create a normaliser for features of this shape, without data."""
        return cls(
            RunningStats.init(features.devices.shape[-1]),
            RunningStats.init(features.constants.shape[-1]),
            RunningStats.init(features.fleet.shape[-1]),
        )

    def update(self, features: Features) -> ObservationNormaliser:
        """Add a batch of features, [..., devices, features]."""
        return ObservationNormaliser(
            self.devices.update(features.devices),
            self.constants.update(features.constants),
            self.fleet.update(features.fleet),
        )

    def normalise(self, features: Features) -> Features:
        """Normalise features for a network."""
        return Features(
            self.devices.normalise(features.devices),
            self.constants.normalise(features.constants),
            self.fleet.normalise(features.fleet),
            features.action_mask,
        )


class NeuralPolicy(eqx.Module):
    """A policy that uses a network. It is deterministic, unless ``sampling`` selects another mode."""

    network: ActorCritic
    normaliser: ObservationNormaliser
    preference: Preference
    sampling: Sampling = eqx.field(static=True, default="deterministic")
    largest_fleet: int | None = eqx.field(static=True, default=None)  # size that it was trained on, if known

    @classmethod
    def init(
        cls, network: ActorCritic, environment: Environment, state: FleetState, sampling: Sampling = "deterministic"
    ) -> NeuralPolicy:
        """Create an untrained policy, without statistics of observations and with equal preferences."""
        features = extract_features(environment, state)
        return cls(network, ObservationNormaliser.init(features), jnp.full(3, 1 / 3), sampling)

    def forward(self, features: Features) -> ActorCriticOutput:
        """Apply the network to raw features."""
        return self.network(self.normaliser.normalise(features), self.preference)

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        features = extract_features(environment, state)
        action_dist = self.forward(features).action_dist
        sampled, mode = action_dist.sample(key, features.action_mask), action_dist.mode(features.action_mask)
        match self.sampling:
            case "deterministic":
                if self._ranks(environment):
                    mode = _fit_uplink(environment.system, state, action_dist, mode, features.action_mask)
                return mode.action()
            case "sample-modes":
                return RawAction(sampled.train, mode.power_logit, mode.frequency_logit).action()
            case "stochastic":
                return sampled.action()

    def _ranks(self, environment: Environment) -> bool:
        """Return whether the policy itself limits the trainers: in a shielded fleet larger than any of its training."""
        return self.largest_fleet is not None and environment.size > self.largest_fleet and environment.system.shielded


def _fit_uplink(
    system: System, state: FleetState, action_dist: ActionDistribution, mode: RawAction, action_mask: ActionMask
) -> RawAction:
    """Keep only as many trainers as fit the uplink: those most likely to train.

    Otherwise the shield would keep those with the most data. In fleets of the sizes that it was trained on, the policy
    has adapted to this; in a larger fleet it requests many more trainers than fit.
    """
    merit = jnp.where(action_mask[:, 0], jnp.maximum(action_dist.mode_logit, 0.0), FIRST)
    train = top_k_mask(mode.train, merit, uplink_room(system, state, mode.train))
    return RawAction(train, mode.power_logit, mode.frequency_logit)
