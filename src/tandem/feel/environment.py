"""The environment that learners and policies are given: a system with its functions as methods."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel import env, observation, shield
from tandem.feel.measured_accuracy import MeasuredAccuracy
from tandem.feel.observation import Observation
from tandem.feel.rewards import device_objectives
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import Array, DeviceFlags, Flag, RandomKey


class Environment(eqx.Module):
    """A fleet to schedule. Pure, so that ``vmap`` and ``scan`` apply; all state is in ``FleetState``.

    Learners, trajectories, rollouts and networks use only what is here. A subclass that overrides it is another problem
    for them, such as the probe environments of the tests; hand-written heuristics also read ``system``.
    """

    system: System

    @property
    def size(self) -> int:
        """Number of devices."""
        return self.system.size

    @property
    def rounds(self) -> int:
        """Rounds of an episode."""
        return self.system.rounds

    @property
    def device_features(self) -> tuple[str, ...]:
        """Names of the columns of ``Observation.devices``."""
        return observation.device_features(self.system)

    @property
    def measured_accuracy(self) -> MeasuredAccuracy | None:
        """The models that accuracy is measured with, which need memory; None if it is estimated."""
        return self.system.measured_accuracy

    def reset(self, key: RandomKey) -> FleetState:
        """Begin an episode."""
        return env.reset(self.system, key)

    def step(self, state: FleetState, action: Action) -> tuple[FleetState, RoundOutcome]:
        """Simulate one round."""
        return env.step(self.system, state, action)

    def observe(self, state: FleetState) -> Observation:
        """Observe the fleet at the start of a round."""
        return observation.observe(self.system, state)

    def device_constants(self) -> Float[Array, "devices constants"]:
        """Logarithms of the constants that distinguish one device from another."""
        return observation.device_constants(self.system)

    def action_mask(self, state: FleetState) -> DeviceFlags:
        """Devices that may train in this round."""
        return shield.action_mask(self.system, state)

    def is_truncated(self, state: FleetState) -> Flag:
        """Whether the episode is over."""
        return env.is_truncated(self.system, state)

    def device_rewards(self, outcome: RoundOutcome) -> Float[Array, "devices 3"]:
        """Reward of each device, whose mean is ``outcome.reward``: its objectives, or the penalty after a violation."""
        return jnp.where(outcome.violations.any(), self.system.penalty, device_objectives(outcome))
