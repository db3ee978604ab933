"""Drift: class shares and image appearance as smooth random functions of time, different on each device.

A drifting feature is z(t) = sqrt(2/K) sum over k of cos(w_k t + u_k) - cos(u_k), with w_k normal of standard deviation
1 / time scale and u_k uniform: approximately a Gaussian process minus its value at time 0, when there is no drift. It
never repeats, needs no history, and is a pure function of the seed, the device and the time.
"""

from __future__ import annotations

import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from tandem.federated.image_drift import NUM_TRANSFORMS
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.rng import DriftStream, fold_stream
from tandem.scenario.plugins import DriftConfig

WAVES = 8  # K: enough for the sum to be approximately normal


class DriftParameters(eqx.Module):
    """The drift parameters of a scenario as arrays."""

    per_s: Scalar  # 1 / time scale
    appearance: Scalar
    classes: Scalar
    shared: Scalar

    @classmethod
    def from_config(cls, drift: DriftConfig) -> DriftParameters:
        """Convert the fields of a scenario."""
        values = (1 / drift.time_scale_s, drift.appearance, drift.classes, drift.shared)
        return cls(*(jnp.asarray(value, float) for value in values))


class FourierProcess(eqx.Module):
    """Random functions of time, one for each feature."""

    frequency: Float[Array, "features waves"]  # per time scale
    phase: Float[Array, "features waves"]

    @classmethod
    def init(cls, features: int, key: RandomKey) -> FourierProcess:
        """Draw frequencies and phases."""
        one, two = jax.random.split(key)
        shape = (features, WAVES)
        return cls(jax.random.normal(one, shape), jax.random.uniform(two, shape, maxval=2 * math.pi))

    def at(self, time: Scalar) -> Float[Array, " features"]:
        """Return z of each feature at a time, measured in time scales."""
        waves = jnp.cos(self.frequency * time + self.phase) - jnp.cos(self.phase)
        return math.sqrt(2 / WAVES) * jnp.sum(waves, axis=-1)


class DeviceDrift(eqx.Module):
    """The drift of one device: the part that all devices share, its own part, and the key of its requests."""

    common: FourierProcess
    own: FourierProcess
    requests: RandomKey


def init_device_drift(key: RandomKey, device: Int[Array, ""], classes: int) -> DeviceDrift:
    """Draw the drift of one device; it does not depend on the size of the fleet."""
    common_key = fold_stream(key, DriftStream.COMMON)
    own_key = fold_stream(key, DriftStream.OWN)
    request_key = fold_stream(key, DriftStream.REQUESTS)
    features = classes + NUM_TRANSFORMS
    return DeviceDrift(
        FourierProcess.init(features, common_key),
        FourierProcess.init(features, jax.random.fold_in(own_key, device)),
        jax.random.fold_in(request_key, device),
    )


def drift_at(
    drift: DeviceDrift, parameters: DriftParameters, classes: int, time_s: Scalar
) -> tuple[Float[Array, " classes"], Float[Array, " transforms"]]:
    """Return the class shares of a device's requests at a time, and the appearance of their images."""
    time = time_s * parameters.per_s
    z = jnp.sqrt(parameters.shared) * drift.common.at(time) + jnp.sqrt(1 - parameters.shared) * drift.own.at(time)
    return jax.nn.softmax(parameters.classes * z[:classes]), parameters.appearance * z[classes:]
