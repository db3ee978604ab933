"""Constraints C1 to C8 of the paper: which of them a round violates, and on which devices."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.types import Array, DeviceFlags, Flag, PerDevice, Scalar

CONSTRAINTS = ("C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8")

# Single precision rounds; a limit that is met exactly must not count as violated.
SLACK = 1e-5


def exceeds(value: PerDevice, limit: Array) -> DeviceFlags:
    """Return whether a value is above its limit by more than rounding."""
    return value > limit * (1 + SLACK)


class Violations(eqx.Module):
    """The devices that violate each constraint in a round."""

    c1: DeviceFlags  # L <= L_max: this device would have made the round longer
    c2: DeviceFlags  # Q <= Q_max: requests did not fit
    c3: DeviceFlags  # D <= D_max: samples did not fit
    c4: DeviceFlags  # D > 0 to train: the action was to train without data
    c5: DeviceFlags  # L_in <= L: its inference outlasted the round
    c6: DeviceFlags  # alpha in {0, 1}
    c7: DeviceFlags  # p_min <= p <= p_max
    c8: DeviceFlags  # f_min <= f <= f_max

    def by_device(self) -> DeviceFlags:
        """Return the devices that violate any constraint."""
        return self.c1 | self.c2 | self.c3 | self.c4 | self.c5 | self.c6 | self.c7 | self.c8

    def by_constraint(self) -> Array:
        """Return whether any device violates each constraint, [8], in the order of ``CONSTRAINTS``."""
        flags = (self.c1, self.c2, self.c3, self.c4, self.c5, self.c6, self.c7, self.c8)
        return jnp.stack([jnp.any(flag) for flag in flags])

    def any(self) -> Flag:
        """Return whether the round violates any constraint."""
        return jnp.any(self.by_device())


def round_too_long(
    train: DeviceFlags, training_s: PerDevice, inference_s: PerDevice, round_max_s: Scalar
) -> DeviceFlags:
    """Return the devices that violate C1: trainers above the limit, or servers above it in a round without trainers."""
    return jnp.where(train, exceeds(training_s, round_max_s), ~jnp.any(train) & exceeds(inference_s, round_max_s))


def outside_unit(normalised: PerDevice) -> DeviceFlags:
    """Return the devices that violate C7 or C8 in normalised form: the choice is not a number in [0, 1]."""
    return ~((normalised >= 0) & (normalised <= 1))
