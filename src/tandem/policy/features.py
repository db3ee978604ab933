"""The inputs of a network: the observation of a fleet, and the constants of its devices."""

from __future__ import annotations

import equinox as eqx
from jaxtyping import Float

from tandem.feel.environment import Environment
from tandem.feel.state import FleetState
from tandem.feel.types import ActionMask, Array


class Features(eqx.Module):
    """A fleet at the start of a round: raw numbers, which ``ObservationNormaliser`` normalises."""

    devices: Float[Array, "devices features"]  # the observation of each device
    constants: Float[Array, "devices constants"]  # logarithms of the constants of each device
    fleet: Float[Array, " fleet_features"]
    action_mask: ActionMask


def extract_features(environment: Environment, state: FleetState) -> Features:
    """Return the inputs of a network for a state."""
    observation = environment.observe(state)
    return Features(
        observation.devices, environment.device_constants(), observation.fleet, environment.action_mask(state)
    )
