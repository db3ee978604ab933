"""Costs of computing and transmission: latencies in seconds, energies in joules."""

from __future__ import annotations

import jax.numpy as jnp

from tandem.feel.numerics import fleet_max, no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar

# With a rate of 0 the upload never ends; a large finite latency keeps all later numbers finite.
NEVER_S = 1e9


def compute_latency(
    iterations: Scalar, cycles_per_sample: PerDevice, data: PerDevice, frequency_hz: PerDevice
) -> PerDevice:
    """Compute the latency of local training, L_cmp = U chi_tr D / f."""
    return iterations * cycles_per_sample * data / frequency_hz


def compute_energy(capacitance: PerDevice, frequency_hz: PerDevice, busy_s: PerDevice) -> PerDevice:
    """Compute the energy of training, E_cmp = e f^3 L_cmp, or of inference, E_in = e f^3 L_in."""
    return no_fma(capacitance * frequency_hz * frequency_hz * frequency_hz * busy_s)


def upload_latency(update_bits: Scalar, rate_bit_per_s: PerDevice) -> PerDevice:
    """Compute the latency of the upload, L_up = G / r."""
    return jnp.minimum(update_bits / jnp.maximum(rate_bit_per_s, update_bits / NEVER_S), NEVER_S)


def upload_energy(power_w: PerDevice, sending_s: PerDevice) -> PerDevice:
    """Compute the energy of the upload, E_up = p L_up."""
    return no_fma(power_w * sending_s)


def inference_latency(cycles_per_request: PerDevice, queue: PerDevice, frequency_hz: PerDevice) -> PerDevice:
    """Compute the latency of inference, L_in = chi_in Q / f; the whole queue is one batch."""
    return cycles_per_request * queue / frequency_hz


def round_duration(
    train: DeviceFlags, training_s: PerDevice, inference_s: PerDevice, floor_s: Scalar, idle_s: Scalar
) -> Scalar:
    """Compute the duration of a round, L = max over trainers of (L_cmp + L_up), at least the scheduling slot.

    The paper does not define a round without trainers: it lasts ``idle_s``, or as long as the longest inference.
    """
    slowest_trainer = fleet_max(training_s, train)
    longest_inference = fleet_max(inference_s, ~train)
    lasting = jnp.where(jnp.any(train), slowest_trainer, jnp.maximum(idle_s, longest_inference))
    return jnp.maximum(lasting, floor_s)
