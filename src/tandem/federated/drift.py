"""How the world changes: class shares and appearance as smooth random functions of time, for each device its own.

A feature of the world is z(t) = sqrt(2/K) sum over k of cos(w_k t + u_k) - cos(u_k), with w_k normal of deviation
1 / time scale and u_k uniform: a Gaussian process seen from its value at time 0, where nothing has changed yet. It
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

WAVES = 8  # K: enough for a sum to be about normal


class DriftParameters(eqx.Module):
    """A scenario's drift as numbers."""

    per_s: Scalar  # 1 / time scale
    appearance: Scalar
    classes: Scalar
    shared: Scalar

    @classmethod
    def from_config(cls, drift: DriftConfig) -> DriftParameters:
        """As written in a scenario."""
        values = (1 / drift.time_scale_s, drift.appearance, drift.classes, drift.shared)
        return cls(*(jnp.asarray(value, float) for value in values))


class FourierProcess(eqx.Module):
    """The waves of some features."""

    frequency: Float[Array, "features waves"]  # per time scale
    phase: Float[Array, "features waves"]

    @classmethod
    def init(cls, features: int, key: RandomKey) -> FourierProcess:
        """A course that the key decides."""
        one, two = jax.random.split(key)
        shape = (features, WAVES)
        return cls(jax.random.normal(one, shape), jax.random.uniform(two, shape, maxval=2 * math.pi))

    def at(self, time: Scalar) -> Float[Array, " features"]:
        """z of each feature, ``time`` in time scales."""
        waves = jnp.cos(self.frequency * time + self.phase) - jnp.cos(self.phase)
        return math.sqrt(2 / WAVES) * jnp.sum(waves, axis=-1)


class DeviceDrift(eqx.Module):
    """What one device will see: the course that all share, and its own; and the key its requests are drawn with."""

    common: FourierProcess
    own: FourierProcess
    requests: RandomKey


def init_device_drift(key: RandomKey, device: Int[Array, ""], classes: int) -> DeviceDrift:
    """The world of one device; it does not depend on how many others there are."""
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
    world: DeviceDrift, settings: DriftParameters, classes: int, time_s: Scalar
) -> tuple[Float[Array, " classes"], Float[Array, " looks"]]:
    """The shares of the classes in a device's requests at a time, and how those requests look."""
    time = time_s * settings.per_s
    z = jnp.sqrt(settings.shared) * world.common.at(time) + jnp.sqrt(1 - settings.shared) * world.own.at(time)
    return jax.nn.softmax(settings.classes * z[:classes]), settings.appearance * z[classes:]
