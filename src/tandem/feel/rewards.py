"""The three objectives of a round, and its reward."""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from jaxtyping import Float

from tandem.feel.numerics import fleet_mean
from tandem.feel.state import RoundOutcome
from tandem.feel.types import Array, DeviceFlags, Flag, Objectives, PerDevice

# The devices whose rewards contain the penalty of a round in violation: all of them, or those that cause the violation.
ViolationCredit = Literal["fleet", "device"]


def round_objectives(train: DeviceFlags, accuracy: PerDevice, latency_s: PerDevice, energy_j: PerDevice) -> Objectives:
    """Compute (r1, r2, r3): means over devices of (1-alpha) Acc, -(1-alpha) L_tot and -E.

    Over all rounds these give (o1, -o2, -o3).
    """
    return jnp.stack([fleet_mean(share) for share in _shares(train, accuracy, latency_s, energy_j)])


def device_objectives(outcome: RoundOutcome) -> Float[Array, "devices 3"]:
    """Compute each device's contribution to (r1, r2, r3), which is the mean of these over devices."""
    train = outcome.executed.train
    return jnp.stack(_shares(train, outcome.accuracy, outcome.latency_s, outcome.energy_j), axis=-1)


def _shares(
    train: DeviceFlags, accuracy: PerDevice, latency_s: PerDevice, energy_j: PerDevice
) -> tuple[PerDevice, PerDevice, PerDevice]:
    return jnp.where(train, 0.0, accuracy), -jnp.where(train, 0.0, latency_s), -energy_j


def reward(objectives: Objectives, violated: Flag, penalty: Objectives) -> Objectives:
    """Compute r = [r1, r2, r3] if every constraint holds, else [rho1, rho2, rho3]."""
    return jnp.where(violated, penalty, objectives)


def device_rewards(
    outcome: RoundOutcome, penalty: Objectives, violation_credit: ViolationCredit
) -> Float[Array, "devices 3"]:
    """Divide the reward of a round among the devices; the mean of their rewards is that of the round.

    In a round in violation, ``fleet`` gives the penalty to every device, so a decision of one device does not change
    the reward as long as another device violates a constraint. ``device`` gives every device its own objectives, and
    what is missing to the penalty of the fleet to the devices that violate a constraint, in equal parts.
    """
    own, violated = device_objectives(outcome), outcome.violations.any()
    if violation_credit == "fleet":
        return jnp.where(violated, penalty, own)
    causes = outcome.violations.by_device()
    missing = (penalty - outcome.objectives) * (causes.shape[0] / jnp.maximum(jnp.sum(causes), 1))
    return own + jnp.where(causes[:, None], missing, 0.0)
