"""How accurate models really are, by the volume and age of their data and by their own age.

One cell of the measurement is a fleet in a steady state: in every round some devices, in turn, train on x new samples
together, whose mean age is y. Drift goes on meanwhile. At several times the server's model is asked about requests of
all devices as they are then, and as they are when the model has become older.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.calibration.cache import MeasurementCache
from tandem.federated.data import Samples, sample_requests
from tandem.federated.drift import DeviceDrift, init_device_drift
from tandem.federated.fedavg import Model, count_correct, federated_average, local_update
from tandem.federated.ragged import capacity_for
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.types import Array, Count, RandomKey, Scalar
from tandem.rng import SeedStream, stream_key

VOLUMES = (8, 16, 32, 64, 128, 256, 512)  # x, samples of a round, all trainers together
DATA_AGES_S = (1.0, 5.0, 15.0, 30.0, 60.0)  # y
MODEL_AGES_S = (0.0, 5.0, 10.0, 20.0, 40.0, 80.0)  # delta
PROBES = 32  # requests of each device, every time it is asked
SPANS = 4  # a trainer's samples come from so many times
Values = NDArray[np.float64]


class MeasurementPlan(eqx.Module):
    """How a cell is measured; what shapes the program is static."""

    round_s: Scalar  # between two trainings
    trainers: int = eqx.field(static=True)  # in a round
    devices: int = eqx.field(static=True)
    settling: int = eqx.field(static=True)  # rounds before the first measurement
    measured: int = eqx.field(static=True)  # times of measurement
    apart: int = eqx.field(static=True)  # rounds between two of them
    probes: int = eqx.field(static=True)  # requests that each device asks at a time
    capacity: int = eqx.field(static=True)  # samples of one trainer and span, at most


@dataclass(frozen=True)
class Measurements:
    """Mean accuracies over worlds and times, and how sure they are."""

    samples: Values  # [volumes]
    data_age_s: Values  # [data ages]
    model_age_s: Values  # [model ages]
    accuracy: Values  # [volumes, data ages, model ages]
    standard_error: Values  # the same
    pretrained: float  # accuracy of the model that nothing has been done to, before any drift

    def rows(self) -> Iterator[tuple[float, ...]]:
        """A row for each accuracy: samples, age of data, age of model, accuracy, its standard error."""
        for place in np.ndindex(*self.accuracy.shape):
            x, y, age = self.samples[place[0]], self.data_age_s[place[1]], self.model_age_s[place[2]]
            yield tuple(float(value) for value in (x, y, age, self.accuracy[place], self.standard_error[place]))


def plan_for(
    truth: FederatedSimulation, devices: int, round_s: float, most_samples: int, rounds: int
) -> MeasurementPlan:
    """A plan whose cells last so many rounds, a third of them to settle."""
    trainers = min(truth.capacities.trainers, devices)
    measured = 6
    apart = max(1, (rounds - rounds // 3) // measured)
    return MeasurementPlan(
        round_s=jnp.asarray(round_s, float),
        trainers=trainers,
        devices=devices,
        settling=max(1, rounds - apart * measured),
        measured=measured,
        apart=apart,
        probes=PROBES,
        capacity=capacity_for(-(-most_samples // (trainers * SPANS))),
    )


def measure(
    truth: FederatedSimulation,
    plan: MeasurementPlan,
    worlds: int,
    seed: int,
    volumes: Sequence[int] = VOLUMES,
    data_ages_s: Sequence[float] = DATA_AGES_S,
    model_ages_s: Sequence[float] = MODEL_AGES_S,
    told: Callable[[int, int], None] = lambda done, of: None,
    notebook: MeasurementCache | None = None,
) -> Measurements:
    """Measure cell by cell, those that are not in the notebook; ``told`` hears how many are done, of how many."""
    notebook = notebook or MeasurementCache()
    keys = jax.random.split(stream_key(seed, SeedStream.CALIBRATION), worlds)
    ages = jnp.asarray(model_ages_s, float)
    cells = [(x, y) for x in volumes for y in data_ages_s]
    seen: list[Values] = []
    for done, (x, y) in enumerate(cells):
        told(done, len(cells))
        found = notebook.get((x, y))
        if found is None:
            found = np.asarray(_cell(truth, plan, keys, jnp.asarray(x), jnp.asarray(y, float), ages), np.float64)
            notebook.add((x, y), found)
        seen.append(found.reshape(-1, len(model_ages_s)))
    shape = (len(volumes), len(data_ages_s), len(model_ages_s))
    # Times within a world resemble each other; worlds are independent, and the error is reckoned from them.
    by_world = np.stack(seen).reshape(len(cells), worlds, plan.measured, -1).mean(axis=2)
    error = by_world.std(axis=1, ddof=1) / np.sqrt(worlds) if worlds > 1 else np.full(by_world[:, 0].shape, np.nan)
    told(len(cells), len(cells))
    return Measurements(
        samples=np.asarray(volumes, np.float64),
        data_age_s=np.asarray(data_ages_s, np.float64),
        model_age_s=np.asarray(model_ages_s, np.float64),
        accuracy=by_world.mean(axis=1).reshape(shape),
        standard_error=error.reshape(shape),
        pretrained=float(truth.accuracy),
    )


@eqx.filter_jit
def _cell(
    truth: FederatedSimulation, plan: MeasurementPlan, keys: Array, samples: Count, age_s: Scalar, ages_s: Array
) -> Array:
    """[worlds, times, model ages]: the accuracy of the server's model."""
    return jax.vmap(lambda key: _in_one_world(truth, plan, key, samples, age_s, ages_s))(keys)


def _in_one_world(
    truth: FederatedSimulation, plan: MeasurementPlan, key: RandomKey, samples: Count, age_s: Scalar, ages_s: Array
) -> Array:
    """[times, model ages]: the accuracy of the server's model in one world."""
    worlds = jax.vmap(lambda n: init_device_drift(key, n, truth.pool.classes))(jnp.arange(plan.devices))
    spans = plan.trainers * SPANS
    # Of x samples each of the spans of all trainers gets its share, the first ones what does not divide.
    shares = (samples // spans + (jnp.arange(spans) < samples % spans)).reshape(plan.trainers, SPANS)

    def one_round(server: Model, number: Count) -> tuple[Model, None]:
        now_s = (number + 1) * plan.round_s
        who = (number * plan.trainers + jnp.arange(plan.trainers)) % plan.devices
        trainers = jax.tree.map(lambda leaf: leaf[who], worlds)

        def update(world: DeviceDrift, share: Array) -> tuple[Model, Count]:
            gathered, count = _aged_samples(truth, plan, world, share, number, now_s, age_s)
            return local_update(server, gathered, count, truth.iterations, truth.learning_rate), count

        updated, counts = jax.vmap(update)(trainers, shares)
        return federated_average(server, updated, counts.astype(float)), None

    def until_measured(server: Model, first: Count) -> tuple[Model, Array]:
        server, _ = jax.lax.scan(one_round, server, first + jnp.arange(plan.apart))
        now_s = (first + plan.apart) * plan.round_s
        return server, jax.vmap(lambda age: _accuracy(truth, plan, worlds, server, first, now_s + age))(ages_s)

    server, _ = jax.lax.scan(one_round, truth.model, jnp.arange(plan.settling))
    starts = plan.settling + plan.apart * jnp.arange(plan.measured)
    return jax.lax.scan(until_measured, server, starts)[1]


def _aged_samples(
    truth: FederatedSimulation,
    plan: MeasurementPlan,
    world: DeviceDrift,
    share: Array,
    number: Count,
    now_s: Scalar,
    age_s: Scalar,
) -> tuple[Samples, Count]:
    """A trainer's samples from times evenly spread over the last 2 y seconds: their mean age is y."""
    gathered = Samples.init(SPANS * plan.capacity, truth.pool.images.shape[1:])
    count = jnp.zeros((), jnp.int32)
    for span in range(SPANS):
        time_s = now_s - 2 * age_s * (span + 0.5) / SPANS
        serial = ((number * SPANS + span) * plan.capacity + jnp.arange(plan.capacity)).astype(jnp.int32)
        gathered = gathered.append(count, sample_requests(truth.pool, truth.drift, world, serial, time_s))
        count = count + share[span]
    return gathered, count


def _accuracy(
    truth: FederatedSimulation, plan: MeasurementPlan, worlds: Any, server: Model, first: Count, time_s: Scalar
) -> Scalar:
    """The share of right answers to requests of all devices at a time; requests that nobody trains on."""
    serial = -1 - (first * plan.probes + jnp.arange(plan.probes)).astype(jnp.int32)

    def right(world: DeviceDrift) -> Count:
        asked = sample_requests(truth.pool, truth.drift, world, serial, time_s)
        return count_correct(server, asked, jnp.asarray(plan.probes))

    return jnp.sum(jax.vmap(right)(worlds)) / (plan.devices * plan.probes)
