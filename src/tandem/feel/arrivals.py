"""Arrival processes: the number of requests that reach each device in a round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tandem.feel.numerics import no_fma
from tandem.feel.shield_plan import poisson_quantile
from tandem.feel.types import Array, PerDevice, RandomKey, Scalar
from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.plugins import ArrivalsConfig, ConstantArrivalsConfig, PoissonArrivalsConfig, TraceArrivalsConfig
from tandem.scenario.schema import Scenario
from tandem.scenario.traces import read_trace


class ArrivalProcess(eqx.Module):
    """Base class of arrival processes. A new kind is a subclass and an entry in ``ARRIVALS``."""

    @abstractmethod
    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        """Draw the requests that reach each device in a round that starts at ``clock_s`` and lasts ``duration_s``."""

    @abstractmethod
    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        """Return the number of requests that arrivals in a round of this length exceed with probability ``outage``."""

    @abstractmethod
    def mean_rate(self) -> Column:
        """Return the mean number of requests per second in the long run."""


class ConstantProcess(ArrivalProcess):
    """Constant arrivals: d = lambda * L."""

    rate_per_s: PerDevice

    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        return no_fma(self.rate_per_s * duration_s)

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        return self.mean_rate() * duration_s

    def mean_rate(self) -> Column:
        return np.asarray(self.rate_per_s, np.float64)


class PoissonProcess(ArrivalProcess):
    """Poisson arrivals: d ~ Poisson(lambda * L)."""

    rate_per_s: PerDevice

    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        mean = self.rate_per_s * duration_s
        # Each device has its own key: with one key for all, a device's requests would depend on the fleet's size.
        keys = jax.random.split(key, mean.shape[0])
        return jax.vmap(jax.random.poisson)(keys, mean).astype(mean.dtype)

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        return poisson_quantile(self.mean_rate() * duration_s, outage)

    def mean_rate(self) -> Column:
        return np.asarray(self.rate_per_s, np.float64)


class TraceProcess(ArrivalProcess):
    """Recorded rates, integrated over the round."""

    cumulative: Float[Array, "time devices"]  # requests since the trace began, at each step
    steps_per_s: Scalar

    def sample(self, clock_s: Scalar, duration_s: Scalar, key: RandomKey) -> PerDevice:
        return self._since_start(clock_s + duration_s) - self._since_start(clock_s)

    def _since_start(self, time_s: Scalar) -> PerDevice:
        steps = self.cumulative.shape[0] - 1
        position = no_fma(time_s * self.steps_per_s)
        periods = jnp.floor(position * (1 / steps))
        within = position - no_fma(periods * steps)
        step = jnp.minimum(within.astype(jnp.int32), steps - 1)
        before, after = self.cumulative[step], self.cumulative[step + 1]
        whole, part = no_fma(periods * self.cumulative[-1]), no_fma((within - step) * (after - before))
        return whole + before + part

    def upper_quantile(self, duration_s: float, outage: float) -> Column:
        return np.asarray(np.max(self._rates(), axis=0) * duration_s)

    def mean_rate(self) -> Column:
        return np.asarray(self._rates().mean(axis=0))

    def _rates(self) -> Column:
        return np.diff(np.asarray(self.cumulative, np.float64), axis=0) * float(self.steps_per_s)


def build_arrivals(scenario: Scenario, devices: DeviceTable) -> ArrivalProcess:
    """Build the arrival process of a scenario."""
    arrivals = scenario.workload.arrivals
    return ARRIVALS[type(arrivals)](arrivals, scenario, devices)


def _constant(arrivals: Any, scenario: Scenario, devices: DeviceTable) -> ArrivalProcess:
    return ConstantProcess(jnp.asarray(devices.request_rate_per_s, float))


def _poisson(arrivals: Any, scenario: Scenario, devices: DeviceTable) -> ArrivalProcess:
    return PoissonProcess(jnp.asarray(devices.request_rate_per_s, float))


def _trace(arrivals: TraceArrivalsConfig, scenario: Scenario, devices: DeviceTable) -> ArrivalProcess:
    trace = read_trace(
        arrivals.path,
        devices=len(devices),
        duration_s=scenario.rounds * scenario.limits.round_max_s,
        repeat=arrivals.repeat,
        lowest=0.0,
        meaning="requests per second",
        field="workload.arrivals.path",
        source=scenario.source,
    )
    start = np.zeros((1, len(devices)))
    cumulative = np.concatenate([start, np.cumsum(trace.values * trace.step_s, axis=0)])
    return TraceProcess(jnp.asarray(cumulative, float), jnp.asarray(1 / trace.step_s, float))


ARRIVALS: dict[type[ArrivalsConfig], Callable[[Any, Scenario, DeviceTable], ArrivalProcess]] = {
    ConstantArrivalsConfig: _constant,
    PoissonArrivalsConfig: _poisson,
    TraceArrivalsConfig: _trace,
}
