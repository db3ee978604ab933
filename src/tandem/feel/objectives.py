"""The three objectives of a round, and the reward it earns."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.reduce import fleet_mean
from tandem.feel.types import DeviceFlags, Flag, Objectives, PerDevice

OBJECTIVES = ("accuracy", "latency_s", "energy_j")


def round_objectives(train: DeviceFlags, accuracy: PerDevice, latency_s: PerDevice, energy_j: PerDevice) -> Objectives:
    """(r1, r2, r3): means over devices of (1-alpha) Acc, -(1-alpha) L_tot and -E; over all rounds, (o1, -o2, -o3)."""
    served_accuracy = fleet_mean(jnp.where(train, 0.0, accuracy))
    served_latency_s = fleet_mean(jnp.where(train, 0.0, latency_s))
    return jnp.stack([served_accuracy, -served_latency_s, -fleet_mean(energy_j)])


def reward(objectives: Objectives, violated: Flag, penalty: Objectives) -> Objectives:
    """r = [r1, r2, r3] if every constraint holds, else [rho1, rho2, rho3]."""
    return jnp.where(violated, penalty, objectives)
