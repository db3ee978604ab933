"""The environment interface of learners and policies: a system with its functions as methods."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Float

from tandem.feel import env, observation, rewards, shield
from tandem.feel.measured_accuracy import MeasuredAccuracy
from tandem.feel.observation import Observation
from tandem.feel.rewards import ViolationCredit
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import ActionMask, Array, Flag, RandomKey


class Environment(eqx.Module):
    """A fleet to schedule. Pure, so that ``vmap`` and ``scan`` apply; all state is in ``FleetState``.

    Learners, trajectories, rollouts and networks use only this interface; hand-written heuristics also read ``system``.
    A subclass can define another problem, such as the probe environments of the tests.
    """

    system: System

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.system.size

    @property
    def rounds(self) -> int:
        """The number of rounds of an episode."""
        return self.system.rounds

    @property
    def device_features(self) -> tuple[str, ...]:
        """The names of the columns of ``Observation.devices``."""
        return observation.device_features(self.system)

    @property
    def measured_accuracy(self) -> MeasuredAccuracy | None:
        """The measured-accuracy model, whose state needs memory; None if accuracy is estimated."""
        return self.system.measured_accuracy

    def reset(self, key: RandomKey) -> FleetState:
        """Start an episode."""
        return env.reset(self.system, key)

    def step(self, state: FleetState, action: Action) -> tuple[FleetState, RoundOutcome]:
        """Simulate one round."""
        return env.step(self.system, state, action)

    def observe(self, state: FleetState) -> Observation:
        """Return the observation of the scheduler at the start of a round."""
        return observation.observe(self.system, state)

    def device_constants(self) -> Float[Array, "devices constants"]:
        """Return the logarithms of the constants that distinguish one device from another."""
        return observation.device_constants(self.system)

    def action_mask(self, state: FleetState) -> ActionMask:
        """Return the modes that each device may choose in this round: columns serve and train."""
        return shield.action_mask(self.system, state)

    def is_truncated(self, state: FleetState) -> Flag:
        """Return whether the episode is over."""
        return env.is_truncated(self.system, state)

    def device_rewards(
        self, outcome: RoundOutcome, violation_credit: ViolationCredit = "fleet"
    ) -> Float[Array, "devices 3"]:
        """Return each device's reward: its objectives, and its part of the penalty. The mean is ``outcome.reward``."""
        return rewards.device_rewards(outcome, self.system.penalty, violation_credit)
