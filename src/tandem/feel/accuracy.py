"""Estimated accuracy of the server's model after a round, and of each device's copy as it ages.

The mapping G estimates the accuracy of the server's model. Each mapping is written once, as a formula that the
simulator evaluates with JAX and 'tandem calibrate' with NumPy in double precision.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from tandem.feel.numerics import fleet_sum, no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar
from tandem.scenario.plugins import (
    AccuracyMappingConfig,
    LogExponentialConfig,
    LogRationalConfig,
    PowerLawExponentialConfig,
)

MAX_EXPONENT = 80.0  # exp(80) = 5.5e34 is finite in single precision


class AccuracyMapping(eqx.Module):
    """G(x, y): server accuracy from x samples of mean age y. A new kind is a subclass and an entry in ``MAPPINGS``."""

    k1: Scalar
    k2: Scalar
    k3: Scalar
    max_k2: ClassVar[float] = 1e6  # the largest k2 that calibration may choose

    @staticmethod
    @abstractmethod
    def formula(xp: Any, x: Any, y: Any, k1: Any, k2: Any, k3: Any) -> Any:
        """Return G before it is bounded to [0, 1], computed with ``xp``: ``jax.numpy`` or, for fits, ``numpy``.

        G is proportional to k1, which calibration solves for; all constants are positive.
        """

    def __call__(self, samples: Scalar, mean_age_s: Scalar) -> Scalar:
        """Return G of the volume and the mean age of the data trained on, before it is bounded to [0, 1]."""
        accuracy: Scalar = self.formula(jnp, samples, mean_age_s, self.k1, self.k2, self.k3)
        return accuracy


class LogExponential(AccuracyMapping):
    """G(x, y) = k1 log(1 + k2 x) exp(-k3 y)."""

    @staticmethod
    def formula(xp: Any, x: Any, y: Any, k1: Any, k2: Any, k3: Any) -> Any:
        return k1 * xp.log1p(k2 * x) * xp.exp(-k3 * y)


class PowerLawExponential(AccuracyMapping):
    """G(x, y) = k1 x^k2 exp(-k3 y)."""

    max_k2 = 3.0  # steeper power laws have no diminishing returns within reach

    @staticmethod
    def formula(xp: Any, x: Any, y: Any, k1: Any, k2: Any, k3: Any) -> Any:
        return k1 * _power_times_decay(xp, x, k2, k3 * y)


class LogRational(AccuracyMapping):
    """G(x, y) = k1 log(1 + k2 x) / (1 + k3 y)."""

    @staticmethod
    def formula(xp: Any, x: Any, y: Any, k1: Any, k2: Any, k3: Any) -> Any:
        return k1 * xp.log1p(k2 * x) / (1 + k3 * y)


def _power_times_decay(xp: Any, x: Any, power: Any, decay: Any) -> Any:
    """Return x^power exp(-decay)."""
    if xp is np:
        return x**power * np.exp(-decay)
    # One exponential: in single precision the power can overflow where the other factor vanishes.
    exponent = no_fma(power * jnp.log(x)) - no_fma(decay)
    return jnp.exp(jnp.minimum(exponent, MAX_EXPONENT))


MAPPINGS: dict[type[AccuracyMappingConfig], type[AccuracyMapping]] = {
    LogExponentialConfig: LogExponential,
    PowerLawExponentialConfig: PowerLawExponential,
    LogRationalConfig: LogRational,
}


def mappings_by_kind() -> dict[str, type[AccuracyMapping]]:
    """Return all registered mappings by the ``kind`` they have in a scenario."""
    return {str(config.model_fields["kind"].default): mapping for config, mapping in MAPPINGS.items()}


def build_accuracy_mapping(config: AccuracyMappingConfig) -> AccuracyMapping:
    """Build the mapping of a scenario."""
    return MAPPINGS[type(config)](*(jnp.asarray(k, float) for k in config.kappa))


def server_accuracy(mapping: AccuracyMapping, trained: DeviceFlags, data: PerDevice, data_age_s: PerDevice) -> Scalar:
    """Compute Acc_ser = G(sum of D, mean of Delta) over the round's trainers, bounded to [0, 1]; 0 without trainers."""
    any_trained = jnp.any(trained)
    samples = jnp.where(any_trained, fleet_sum(jnp.where(trained, data, 0.0)), 1.0)  # 1.0: any value with a log
    mean_age_s = fleet_sum(jnp.where(trained, data_age_s, 0.0)) / jnp.maximum(jnp.sum(trained), 1)
    return jnp.where(any_trained, jnp.clip(mapping(samples, mean_age_s), 0.0, 1.0), 0.0)


def device_accuracy(decay_per_s: Scalar, model_age_s: PerDevice, model_accuracy: PerDevice) -> PerDevice:
    """Compute Acc_n = exp(-rho delta) Acc_ser, with Acc_ser of the round in which device n last trained."""
    return jnp.exp(-decay_per_s * model_age_s) * model_accuracy
