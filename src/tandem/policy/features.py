"""What a network is given: the scheduler's observation, and what distinguishes one device from another."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.observation import observe
from tandem.feel.shield import action_mask
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import Array, DeviceFlags

NUM_CONSTANTS = 9


class Features(eqx.Module):
    """A fleet at the start of a round, as numbers; raw, for ``Moments`` to standardise."""

    devices: Float[Array, "devices features"]  # the observation's features, by device
    constants: Float[Array, "devices constants"]  # what each device is, logarithmic
    fleet: Float[Array, " fleet_features"]
    action_mask: DeviceFlags


def extract_features(system: System, state: FleetState) -> Features:
    """The inputs of a network for this state."""
    observation = observe(system, state)
    return Features(observation.devices, device_constants(system), observation.fleet, action_mask(system, state))


def device_constants(system: System) -> Float[Array, "devices constants"]:
    """What a shared network needs to tell devices apart. They span decades, so their logarithms are taken."""
    devices, envelope = system.devices, system.worst_case
    columns = (
        devices.training_cycles_per_sample,
        devices.inference_cycles_per_request,
        devices.frequency_min_hz,
        devices.frequency_max_hz,
        devices.capacitance,
        devices.switch_energy_j + 1e-3,
        devices.samples_per_request,
        envelope.worst_gain * devices.power_max_w,
        envelope.worst_arrivals + 1e-3,
    )
    return jnp.log(jnp.stack(columns, axis=-1))
