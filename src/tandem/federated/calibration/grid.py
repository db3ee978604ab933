"""Measurement of the accuracy of real models over the volume and age of their data and over their own age.

One cell of the grid is a fleet in a steady state: in every round some devices, in turn, train together on x new samples
of mean age y, under drift. At several times the server's model answers requests of all devices, drawn at that time and
at later times, when the model is older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.algorithm import AlgorithmState, Model, aggregate_models
from tandem.federated.calibration.cache import MeasurementCache
from tandem.federated.data import Samples, sample_requests
from tandem.federated.drift import DeviceDrift, init_device_drift
from tandem.federated.fedavg import count_correct
from tandem.federated.ragged import capacity_for
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.types import Array, Count, RandomKey, Scalar
from tandem.rng import SeedStream, stream_key

VOLUMES = (8, 16, 32, 64, 128, 256, 512)  # x, samples of a round, all trainers together
DATA_AGES_S = (1.0, 5.0, 15.0, 30.0, 60.0)  # y
MODEL_AGES_S = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0)  # delta
PROBES = 32  # test requests of each device at each measurement
SPANS = 4  # times from which the samples of a trainer come
MEASUREMENTS = 6  # in each cell and realisation of the drift
Values = NDArray[np.float64]
Server = tuple[AlgorithmState, Model]


class MeasurementPlan(eqx.Module):
    """The plan of the measurement of a cell. Fields that determine the program are static."""

    round_s: Scalar  # between two trainings
    trainers: int = eqx.field(static=True)  # in a round
    devices: int = eqx.field(static=True)
    settling: int = eqx.field(static=True)  # rounds before the first measurement
    measured: int = eqx.field(static=True)  # number of measurements
    apart: int = eqx.field(static=True)  # rounds between two measurements
    probes: int = eqx.field(static=True)  # test requests of each device at each measurement
    capacity: int = eqx.field(static=True)  # largest number of samples of one trainer and span


@dataclass(frozen=True)
class Measurements:
    """Mean accuracies over realisations of the drift and times, with their standard errors."""

    samples: Values  # [volumes]
    data_age_s: Values  # [data ages]
    model_age_s: Values  # [model ages]
    accuracy: Values  # [volumes, data ages, model ages]
    standard_error: Values  # the same shape
    pretrained: float  # accuracy of the pre-trained model before any drift

    def rows(self) -> Iterator[tuple[float, ...]]:
        """Yield a row for each accuracy: samples, age of data, age of model, accuracy, standard error."""
        for index in np.ndindex(*self.accuracy.shape):
            x, y, age = self.samples[index[0]], self.data_age_s[index[1]], self.model_age_s[index[2]]
            yield tuple(float(value) for value in (x, y, age, self.accuracy[index], self.standard_error[index]))


def plan_for(
    simulation: FederatedSimulation, devices: int, round_s: float, max_samples: int, rounds: int
) -> MeasurementPlan:
    """Return a plan whose cells last this many rounds, a third of which precede the first measurement."""
    trainers = min(simulation.capacities.trainers, devices)
    apart = max(1, (rounds - rounds // 3) // MEASUREMENTS)
    return MeasurementPlan(
        round_s=jnp.asarray(round_s, float),
        trainers=trainers,
        devices=devices,
        settling=max(1, rounds - apart * MEASUREMENTS),
        measured=MEASUREMENTS,
        apart=apart,
        probes=PROBES,
        capacity=capacity_for(-(-max_samples // (trainers * SPANS))),
    )


def measure(
    simulation: FederatedSimulation,
    plan: MeasurementPlan,
    worlds: int,
    seed: int,
    volumes: Sequence[int] = VOLUMES,
    data_ages_s: Sequence[float] = DATA_AGES_S,
    model_ages_s: Sequence[float] = MODEL_AGES_S,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    cache: MeasurementCache | None = None,
) -> Measurements:
    """Measure all cells that are not in the cache, each in ``worlds`` realisations of the drift.

    ``on_progress`` is called with the number of finished cells and of all cells.
    """
    cache = cache or MeasurementCache()
    keys = jax.random.split(stream_key(seed, SeedStream.CALIBRATION), worlds)
    ages = jnp.asarray(model_ages_s, float)
    cells = [(x, y) for x in volumes for y in data_ages_s]
    accuracies: list[Values] = []
    for done, (x, y) in enumerate(cells):
        on_progress(done, len(cells))
        values = cache.get((x, y))
        if values is None:
            measured = _measure_cell(simulation, plan, keys, jnp.asarray(x), jnp.asarray(y, float), ages)
            values = np.asarray(measured, np.float64)
            cache.add((x, y), values)
        accuracies.append(values.reshape(-1, len(model_ages_s)))
    shape = (len(volumes), len(data_ages_s), len(model_ages_s))
    # Measurements in one realisation are correlated; realisations are independent, so the error comes from their means.
    by_world = np.stack(accuracies).reshape(len(cells), worlds, plan.measured, -1).mean(axis=2)
    error = by_world.std(axis=1, ddof=1) / np.sqrt(worlds) if worlds > 1 else np.full(by_world[:, 0].shape, np.nan)
    on_progress(len(cells), len(cells))
    return Measurements(
        samples=np.asarray(volumes, np.float64),
        data_age_s=np.asarray(data_ages_s, np.float64),
        model_age_s=np.asarray(model_ages_s, np.float64),
        accuracy=by_world.mean(axis=1).reshape(shape),
        standard_error=error.reshape(shape),
        pretrained=float(simulation.accuracy),
    )


@eqx.filter_jit
def _measure_cell(
    simulation: FederatedSimulation, plan: MeasurementPlan, keys: Array, samples: Count, age_s: Scalar, ages_s: Array
) -> Array:
    """Measure the accuracy of the server's model in every realisation, [worlds, times, model ages]."""
    return jax.vmap(lambda key: _measure_world(simulation, plan, key, samples, age_s, ages_s))(keys)


def _measure_world(
    simulation: FederatedSimulation, plan: MeasurementPlan, key: RandomKey, samples: Count, age_s: Scalar, ages_s: Array
) -> Array:
    """Measure the accuracy of the server's model in one realisation of the drift, [times, model ages]."""
    algorithm = simulation.algorithm
    drifts = jax.vmap(lambda n: init_device_drift(key, n, simulation.pool.classes))(jnp.arange(plan.devices))
    spans = plan.trainers * SPANS
    # The x samples are divided among the spans of all trainers; the first spans get the remainder.
    shares = (samples // spans + (jnp.arange(spans) < samples % spans)).reshape(plan.trainers, SPANS)

    def run_round(server: Server, number: Count) -> tuple[Server, None]:
        state, model = server
        now_s = (number + 1) * plan.round_s
        indices = (number * plan.trainers + jnp.arange(plan.trainers)) % plan.devices
        trainers = jax.tree.map(lambda leaf: leaf[indices], drifts)

        def update(drift: DeviceDrift, share: Array) -> tuple[Model, Count]:
            gathered, count = _aged_samples(simulation, plan, drift, share, number, now_s, age_s)
            iterations, learning_rate = simulation.iterations, simulation.learning_rate
            return algorithm.local_update(model, gathered, count, iterations, learning_rate), count

        updated, counts = jax.vmap(update)(trainers, shares)
        return aggregate_models(algorithm, state, model, updated, counts.astype(float)), None

    def run_and_measure(server: Server, first: Count) -> tuple[Server, Array]:
        server, _ = jax.lax.scan(run_round, server, first + jnp.arange(plan.apart))
        now_s = (first + plan.apart) * plan.round_s
        model = server[1]
        return server, jax.vmap(lambda age: _accuracy(simulation, plan, drifts, model, first, now_s + age))(ages_s)

    start = (algorithm.init(simulation.model), simulation.model)
    server, _ = jax.lax.scan(run_round, start, jnp.arange(plan.settling))
    starts = plan.settling + plan.apart * jnp.arange(plan.measured)
    return jax.lax.scan(run_and_measure, server, starts)[1]


def _aged_samples(
    simulation: FederatedSimulation,
    plan: MeasurementPlan,
    drift: DeviceDrift,
    share: Array,
    number: Count,
    now_s: Scalar,
    age_s: Scalar,
) -> tuple[Samples, Count]:
    """Draw a trainer's samples at times evenly spread over the last 2 y seconds, so that their mean age is y."""
    gathered = Samples.init(SPANS * plan.capacity, simulation.pool.images.shape[1:])
    count = jnp.zeros((), jnp.int32)
    for span in range(SPANS):
        time_s = now_s - 2 * age_s * (span + 0.5) / SPANS
        serial = ((number * SPANS + span) * plan.capacity + jnp.arange(plan.capacity)).astype(jnp.int32)
        new = sample_requests(simulation.pool, simulation.drift, drift, serial, time_s)
        gathered = gathered.append(count, new)
        count = count + share[span]
    return gathered, count


def _accuracy(
    simulation: FederatedSimulation,
    plan: MeasurementPlan,
    drifts: DeviceDrift,
    model: Model,
    first: Count,
    time_s: Scalar,
) -> Scalar:
    """Return the share of correct answers to test requests of all devices at a time; no device trains on these."""
    serial = -1 - (first * plan.probes + jnp.arange(plan.probes)).astype(jnp.int32)  # training has numbers from 0 on

    def correct(drift: DeviceDrift) -> Count:
        requests = sample_requests(simulation.pool, simulation.drift, drift, serial, time_s)
        return count_correct(model, requests, jnp.asarray(plan.probes))

    return jnp.sum(jax.vmap(correct)(drifts)) / (plan.devices * plan.probes)
