"""The observation of the scheduler.

``minimal`` is the paper's state s = [a of the last round, Q, D, L of the last round]; ``full`` adds other information
that the edge server has: ages, waiting time, the model's accuracy and the last channel gain.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.queues import waiting_time
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import Array

MINIMAL_FEATURES = ("last_train", "last_power", "last_frequency", "queue", "data")
FULL_FEATURES = (*MINIMAL_FEATURES, "data_age_s", "model_age_s", "waiting_s", "model_accuracy", "last_gain_db")
FLEET_FEATURES = ("last_duration_s",)
NUM_CONSTANTS = 9  # columns of ``device_constants``


class Observation(eqx.Module):
    """Features of each device, in the units of their names, and features of the fleet."""

    devices: Float[Array, "devices features"]
    fleet: Float[Array, " fleet_features"]

    def flat(self) -> Float[Array, " all"]:
        """Return one vector: each feature over all devices, ordered as s in the paper, then the fleet's features."""
        return jnp.concatenate([self.devices.T.reshape(-1), self.fleet])


def device_features(system: System) -> tuple[str, ...]:
    """Return the names of the columns of ``Observation.devices``."""
    return MINIMAL_FEATURES if system.observation == "minimal" else FULL_FEATURES


def observe(system: System, state: FleetState) -> Observation:
    """Return the observation of the scheduler at the start of a round."""
    last = state.last_action
    features = {
        "last_train": last.train.astype(state.queue.dtype),
        "last_power": last.power,
        "last_frequency": last.frequency,
        "queue": state.queue,
        "data": state.data,
        "data_age_s": state.data_age_s,
        "model_age_s": state.model_age_s,
        "waiting_s": waiting_time(state.waited_s, state.queue),
        "model_accuracy": state.model_accuracy,
        "last_gain_db": 10 * jnp.log10(jnp.maximum(state.last_gain, 1e-30)),
    }
    columns = [features[name] for name in device_features(system)]
    return Observation(devices=jnp.stack(columns, axis=-1), fleet=state.last_duration_s[None])


def device_constants(system: System) -> Float[Array, "devices constants"]:
    """Return the constants by which a shared network distinguishes devices, as logarithms, since they span decades."""
    devices, worst_case = system.devices, system.worst_case
    columns = (
        devices.training_cycles_per_sample,
        devices.inference_cycles_per_request,
        devices.frequency_min_hz,
        devices.frequency_max_hz,
        devices.capacitance,
        devices.switch_energy_j + 1e-3,
        devices.samples_per_request,
        worst_case.worst_gain * devices.power_max_w,
        worst_case.worst_arrivals + 1e-3,
    )
    assert len(columns) == NUM_CONSTANTS
    return jnp.log(jnp.stack(columns, axis=-1))
