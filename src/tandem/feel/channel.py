"""The shared uplink: the channel gain of each device in a round, and its rate.

A gain here is h / sigma^2, the signal-to-noise ratio for one watt, so that ``power_w * gain`` is the SNR.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jaxtyping import Float

from tandem.feel.numerics import no_fma, packed_uniforms
from tandem.feel.path_loss import gain_from_db, mean_gain, noise_dbw
from tandem.feel.types import Array, Count, PerDevice, RandomKey, Scalar
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.plugins import (
    FadingConfig,
    RayleighFadingConfig,
    RicianFadingConfig,
    StaticFadingConfig,
    TraceFadingConfig,
)
from tandem.scenario.schema import Scenario
from tandem.scenario.traces import read_trace


def uplink_rate(bandwidth_hz: Scalar, trainers: Count | Scalar, power_w: PerDevice, gain: PerDevice) -> PerDevice:
    """Compute r = B / |M| * log2(1 + p h / sigma^2), in bit/s; the round's trainers share the bandwidth equally."""
    share_hz = bandwidth_hz / jnp.maximum(trainers, 1)
    return share_hz * jnp.log1p(power_w * gain) * (1 / math.log(2.0))


class ChannelModel(eqx.Module):
    """Base class of channel models. A new kind is a subclass and an entry in ``CHANNELS``."""

    @abstractmethod
    def gain(self, clock_s: Scalar, key: RandomKey) -> PerDevice:
        """Return each device's gain in the round that starts at ``clock_s``."""

    @abstractmethod
    def worst_gain(self, outage: float) -> Column:
        """Return the gain that each device falls below with probability ``outage``; runs outside compiled code."""


class StaticChannel(ChannelModel):
    """Path loss without fading."""

    mean: PerDevice

    def gain(self, clock_s: Scalar, key: RandomKey) -> PerDevice:
        return self.mean

    def worst_gain(self, outage: float) -> Column:
        return np.asarray(self.mean, np.float64)


class RayleighChannel(ChannelModel):
    """Rayleigh fading, scattered waves only: an exponential power gain, independent in each round."""

    mean: PerDevice

    def gain(self, clock_s: Scalar, key: RandomKey) -> PerDevice:
        return self.mean * jax.random.exponential(key, self.mean.shape, self.mean.dtype)

    def worst_gain(self, outage: float) -> Column:
        return np.asarray(self.mean, np.float64) * -math.log1p(-outage)  # the quantile of an exponential distribution


class RicianChannel(ChannelModel):
    """Rician fading: a direct and a scattered wave, independent in each round; their mean powers sum to 1."""

    mean: PerDevice
    direct: Scalar  # k / (k + 1)
    scattered: Scalar  # 1 / (k + 1)

    def gain(self, clock_s: Scalar, key: RandomKey) -> PerDevice:
        # |direct + scattered e^{i phase}|^2, where the scattered power is exponential and the phase uniform. Twenty
        # bits reach a scattered power of 14 times its mean; twelve bits give 4,096 phases.
        power, turn = packed_uniforms(key, self.mean.shape[0], (20, 12), self.mean.dtype)
        scattered = no_fma(-jnp.log(power) * self.scattered)
        beating = no_fma(2 * jnp.sqrt(self.direct * scattered) * jnp.cos(no_fma(2 * np.pi * turn)))
        return self.mean * jnp.maximum(self.direct + scattered + beating, 0.0)

    def worst_gain(self, outage: float) -> Column:
        scattered = float(self.scattered)
        k = float(self.direct) / scattered
        factor = float(scipy.special.chndtrix(outage, 2, 2 * k)) * scattered / 2  # non-central chi-squared
        return np.asarray(self.mean, np.float64) * factor


class TraceChannel(ChannelModel):
    """Recorded gains; each holds until the next."""

    gains: Float[Array, "time devices"]
    steps_per_s: Scalar

    def gain(self, clock_s: Scalar, key: RandomKey) -> PerDevice:
        row = jnp.floor(clock_s * self.steps_per_s).astype(jnp.int32) % self.gains.shape[0]
        return self.gains[row]

    def worst_gain(self, outage: float) -> Column:
        return np.asarray(np.quantile(np.asarray(self.gains, np.float64), outage, axis=0))


def build_channel(scenario: Scenario, devices: DeviceTable) -> ChannelModel:
    """Build the channel model of a scenario."""
    fading = scenario.channel.fading
    return CHANNELS[type(fading)](fading, scenario, devices)


def _static(fading: Any, scenario: Scenario, devices: DeviceTable) -> ChannelModel:
    return StaticChannel(jnp.asarray(mean_gain(scenario.channel, devices), float))


def _rayleigh(fading: Any, scenario: Scenario, devices: DeviceTable) -> ChannelModel:
    return RayleighChannel(jnp.asarray(mean_gain(scenario.channel, devices), float))


def _rician(fading: RicianFadingConfig, scenario: Scenario, devices: DeviceTable) -> ChannelModel:
    k = np.clip(10 ** (fading.k_db / 10), 1e-6, 1e6)
    mean = mean_gain(scenario.channel, devices)
    return RicianChannel(*(jnp.asarray(value, float) for value in (mean, k / (k + 1), 1 / (k + 1))))


def _trace(fading: TraceFadingConfig, scenario: Scenario, devices: DeviceTable) -> ChannelModel:
    trace = read_trace(
        fading.path,
        devices=len(devices),
        duration_s=scenario.rounds * scenario.limits.round_max_s,
        repeat=fading.repeat,
        lowest=-400.0,
        meaning="channel gains in dB, such as -118",
        field="channel.fading.path",
        source=scenario.source,
    )
    gains = gain_from_db(trace.values - noise_dbw(scenario.channel))
    return TraceChannel(jnp.asarray(gains, float), jnp.asarray(1 / trace.step_s, float))


CHANNELS: dict[type[FadingConfig], Callable[[Any, Scenario, DeviceTable], ChannelModel]] = {
    StaticFadingConfig: _static,
    RayleighFadingConfig: _rayleigh,
    RicianFadingConfig: _rician,
    TraceFadingConfig: _trace,
}
