"""What computing and sending cost: latencies in seconds, energies in joules."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.numerics import fleet_max, no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar

# A device that is not heard never finishes its upload; a finite never keeps every later number finite.
NEVER_S = 1e9


def compute_latency(
    iterations: Scalar, cycles_per_sample: PerDevice, data: PerDevice, frequency_hz: PerDevice
) -> PerDevice:
    """L_cmp = U chi_tr D / f."""
    return iterations * cycles_per_sample * data / frequency_hz


def compute_energy(capacitance: PerDevice, frequency_hz: PerDevice, busy_s: PerDevice) -> PerDevice:
    """E_cmp = e f^3 L_cmp, and E_in = e f^3 L_in."""
    return no_fma(capacitance * frequency_hz * frequency_hz * frequency_hz * busy_s)


def upload_latency(update_bits: Scalar, rate_bit_per_s: PerDevice) -> PerDevice:
    """L_up = G / r."""
    return jnp.minimum(update_bits / jnp.maximum(rate_bit_per_s, update_bits / NEVER_S), NEVER_S)


def upload_energy(power_w: PerDevice, sending_s: PerDevice) -> PerDevice:
    """E_up = p L_up."""
    return no_fma(power_w * sending_s)


def inference_latency(cycles_per_request: PerDevice, queue: PerDevice, frequency_hz: PerDevice) -> PerDevice:
    """L_in = chi_in Q / f, the whole queue in one batch."""
    return cycles_per_request * queue / frequency_hz


def round_duration(
    train: DeviceFlags, training_s: PerDevice, inference_s: PerDevice, floor_s: Scalar, idle_s: Scalar
) -> Scalar:
    """L = max over trainers of (L_cmp + L_up), at least the scheduling slot.

    The paper leaves open a round without trainers: it lasts ``idle_s``, or as long as the longest inference.
    """
    slowest_trainer = fleet_max(training_s, train)
    longest_inference = fleet_max(inference_s, ~train)
    lasting = jnp.where(jnp.any(train), slowest_trainer, jnp.maximum(idle_s, longest_inference))
    return jnp.maximum(lasting, floor_s)
