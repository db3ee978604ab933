"""How accurate models are: the server's after a round, and each device's as its copy ages."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from tandem.feel.numerics import fleet_sum, no_fma
from tandem.feel.types import DeviceFlags, PerDevice, Scalar
from tandem.scenario import plugins as kinds


class AccuracyMapping(eqx.Module):
    """G(x, y). A new kind is a subclass, and an entry in ``MAPPINGS``."""

    k1: Scalar
    k2: Scalar
    k3: Scalar

    @abstractmethod
    def __call__(self, samples: Scalar, mean_age_s: Scalar) -> Scalar:
        """Server accuracy from the volume and the mean age of the data trained on, before bounding to [0, 1]."""


class LogExponential(AccuracyMapping):
    """G(x, y) = k1 log(1 + k2 x) exp(-k3 y)."""

    def __call__(self, samples: Scalar, mean_age_s: Scalar) -> Scalar:
        return self.k1 * jnp.log1p(self.k2 * samples) * jnp.exp(-self.k3 * mean_age_s)


class PowerLawExponential(AccuracyMapping):
    """G(x, y) = k1 x^k2 exp(-k3 y)."""

    def __call__(self, samples: Scalar, mean_age_s: Scalar) -> Scalar:
        # One exponential: apart, the power can overflow where the other vanishes.
        exponent = no_fma(self.k2 * jnp.log(samples)) - no_fma(self.k3 * mean_age_s)
        return self.k1 * jnp.exp(jnp.minimum(exponent, 80.0))


class LogRational(AccuracyMapping):
    """G(x, y) = k1 log(1 + k2 x) / (1 + k3 y)."""

    def __call__(self, samples: Scalar, mean_age_s: Scalar) -> Scalar:
        return self.k1 * jnp.log1p(self.k2 * samples) / (1 + self.k3 * mean_age_s)


MAPPINGS: dict[type[kinds.AccuracyMappingConfig], type[AccuracyMapping]] = {
    kinds.LogExponentialConfig: LogExponential,
    kinds.PowerLawExponentialConfig: PowerLawExponential,
    kinds.LogRationalConfig: LogRational,
}


def build_accuracy_mapping(mapping: Any) -> AccuracyMapping:
    """The mapping function a scenario asks for."""
    return MAPPINGS[type(mapping)](*(jnp.asarray(k, float) for k in mapping.kappa))


def server_accuracy(mapping: AccuracyMapping, trained: DeviceFlags, data: PerDevice, data_age_s: PerDevice) -> Scalar:
    """Acc_ser = G(sum of D, mean of Delta) over the round's trainers, bounded to [0, 1]; 0 if there are none."""
    somebody = jnp.any(trained)
    samples = jnp.where(somebody, fleet_sum(jnp.where(trained, data, 0.0)), 1.0)  # 1 is as good as any, and has a log
    mean_age_s = fleet_sum(jnp.where(trained, data_age_s, 0.0)) / jnp.maximum(jnp.sum(trained), 1)
    return jnp.where(somebody, jnp.clip(mapping(samples, mean_age_s), 0.0, 1.0), 0.0)


def device_accuracy(decay_per_s: Scalar, model_age_s: PerDevice, model_accuracy: PerDevice) -> PerDevice:
    """Acc_n = exp(-rho delta) Acc_ser of the round in which device n last trained."""
    return jnp.exp(-decay_per_s * model_age_s) * model_accuracy
