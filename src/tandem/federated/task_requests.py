"""The drifting request streams of Tandem's tasks, one request at a time, for real devices."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.data import WHITE, Pool, Samples, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters, init_device_drift
from tandem.federated.simulation import load_task
from tandem.rng import FleetStream, fold_stream
from tandem.runs.simulation import episode_keys
from tandem.scenario.plugins import TaskConfig


class TaskRequests:
    """Requests of a task. They are those of the simulator with the same seed, device, number and time."""

    def __init__(self, config: TaskConfig, devices: int, seed: int = 0) -> None:
        """Prepare the streams of ``devices`` devices."""
        self._pool, _ = load_task(config)
        self._parameters = DriftParameters.from_config(config.drift)
        fleet_key, _ = jax.random.split(episode_keys([seed])[0])
        key = fold_stream(fleet_key, FleetStream.MEASURED_ACCURACY)
        self._drifts = [init_device_drift(key, jnp.asarray(n), self._pool.classes) for n in range(devices)]
        self.draw(0, 0, 0.0)  # compile

    def draw(self, device: int, number: int, time_s: float) -> tuple[NDArray[np.float32], int]:
        """Return the pixels, in [0, 1], and the label of a request."""
        found = _draw(
            self._pool, self._parameters, self._drifts[device], jnp.asarray([number]), jnp.asarray(time_s, float)
        )
        return np.asarray(found.images[0], np.float32) / WHITE, int(found.labels[0])


@eqx.filter_jit
def _draw(pool: Pool, parameters: DriftParameters, drift: DeviceDrift, number: jax.Array, time_s: jax.Array) -> Samples:
    return sample_requests(pool, parameters, drift, number, time_s)
