"""Tandem's tasks as models of live devices: ``tandem device tandem.federated.task_model:digits``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.device.messages import Weights
from tandem.device.model import Inputs, Labels
from tandem.errors import InputError
from tandem.federated.algorithm import FederatedAlgorithm, Model
from tandem.federated.data import WHITE, Samples
from tandem.federated.fedavg import FedAvg
from tandem.federated.fleet.messages import validate_weights
from tandem.federated.ragged import BLOCK_SIZE
from tandem.federated.simulation import load_task
from tandem.io.tree_io import flatten_arrays
from tandem.scenario.plugins import Cifar10TaskConfig, DigitsTaskConfig, TaskConfig


class TaskModel:
    """The pre-trained model of a task, which trains as the clients of the simulator do. Inputs are pixels in [0, 1]."""

    def __init__(self, config: TaskConfig, algorithm: FederatedAlgorithm | None = None) -> None:
        pool, pretrained = load_task(config)
        self.num_classes = pool.classes
        self.input_shape: tuple[int, ...] = pool.images.shape[1:]
        self._model: Model = pretrained.model
        self._algorithm = algorithm or FedAvg()
        self._learning_rate = jnp.asarray(config.learning_rate, float)

    def warm_up(self, max_samples: int = 512) -> None:
        """Compile what predictions and trainings of up to this many samples need, so that no round has to wait."""
        before, size = self._model, BLOCK_SIZE
        while size <= max_samples:
            inputs = np.zeros((size, *self.input_shape), np.float32)
            self.predict(inputs)
            self.train(inputs, np.zeros(size, np.int64), 1)
            size *= 2
        self._model = before

    def predict(self, inputs: Inputs) -> NDArray[Any]:
        padded = _pad(inputs)  # few shapes, so few programs are compiled
        return np.asarray(_predict(self._model, padded))[: len(inputs)]

    def train(self, inputs: Inputs, labels: Labels, iterations: int) -> None:
        images = np.rint(_pad(inputs) * WHITE).clip(0, WHITE).astype(np.uint8)
        samples = Samples(jnp.asarray(images), jnp.asarray(_pad(labels), jnp.int32))
        count, steps = jnp.asarray(len(labels), jnp.int32), jnp.asarray(iterations, float)
        self._model = _train(self._algorithm, self._model, samples, count, steps, self._learning_rate)

    def get_weights(self) -> Weights:
        return flatten_arrays(self._model)

    def set_weights(self, weights: Weights) -> None:
        self._model = validate_weights(weights, self._model)


def digits() -> TaskModel:
    """Build the model of the task digits; its pre-training takes seconds the first time."""
    return _warm(TaskModel(DigitsTaskConfig()))


def cifar10() -> TaskModel:
    """Build the model of the task CIFAR-10; the environment variable TANDEM_CIFAR10 names the folder of its data."""
    folder = os.environ.get("TANDEM_CIFAR10")
    if not folder:
        raise InputError("TANDEM_CIFAR10: is not set; set it to the folder of CIFAR-10's files.")
    return _warm(TaskModel(Cifar10TaskConfig(path=Path(folder))))


def _warm(model: TaskModel) -> TaskModel:
    model.warm_up()
    return model


_predict = eqx.filter_jit(lambda model, images: model(images))


@eqx.filter_jit
def _train(
    algorithm: FederatedAlgorithm, model: Model, samples: Samples, count: Any, iterations: Any, learning_rate: Any
) -> Model:
    return algorithm.local_update(model, samples, count, iterations, learning_rate)


def _pad(array: NDArray[Any]) -> NDArray[Any]:
    """Append zeros up to a power of two of blocks."""
    slots = BLOCK_SIZE
    while slots < len(array):
        slots *= 2
    return np.concatenate([array, np.zeros((slots - len(array), *array.shape[1:]), array.dtype)])
