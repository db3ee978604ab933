"""The model of a device, as the device sees it: four methods with NumPy arrays, whatever framework is behind them."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tandem.device.messages import Weights
from tandem.errors import InputError, one_line, short_repr

Inputs = NDArray[np.float32]  # [inputs, *input_shape]
Labels = NDArray[np.int64]  # [inputs]


@runtime_checkable
class ClientModel(Protocol):
    """A classifier that a device serves and trains."""

    input_shape: tuple[int, ...]  # of one input
    num_classes: int

    def predict(self, inputs: Inputs) -> NDArray[Any]:
        """Return the scores of the classes, [inputs, num_classes]; the highest one is the prediction."""

    def train(self, inputs: Inputs, labels: Labels, iterations: int) -> None:
        """Train on labelled samples, for this many local iterations (the paper's U), starting from the weights set."""

    def get_weights(self) -> Weights:
        """Return copies of all weights, by name."""

    def set_weights(self, weights: Weights) -> None:
        """Replace all weights. They have the names, shapes and types that ``get_weights`` returns."""


_MEMBERS = ("input_shape", "num_classes", "predict", "train", "get_weights", "set_weights")


def load_model(text: str) -> ClientModel:
    """Build a model with the factory that ``package.module:factory`` names, and try it once.

    Modules in the working directory can be named too. Raises InputError, in one sentence, if the factory does not
    exist, raises an exception, or returns something that is not a ``ClientModel``.
    """
    module_name, colon, name = text.partition(":")
    if not (module_name and colon and name):
        raise InputError(f"{text}: is not the name of a factory; write it as package.module:factory.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        factory: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InputError(
            f"{text}: there is no module {error.name}; install it, or start the device in its folder."
        ) from None
    except Exception as error:
        raise InputError(f"{text}: the module cannot be imported ({_describe(error)}).") from None
    for part in name.split("."):
        factory = getattr(factory, part, None)
    if not callable(factory):
        raise InputError(f"{text}: the module {module_name} has no function {name}.")
    try:
        model = factory()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{text}: the factory raised an exception ({_describe(error)}).") from None
    check_model(model, text)
    checked: ClientModel = model
    return checked


def check_model(model: Any, source: str) -> None:
    """Raise InputError unless ``model`` behaves as a ``ClientModel``: predict one input, and read and set weights."""
    missing = [name for name in _MEMBERS if not hasattr(model, name)]
    if missing:
        raise InputError(f"{source}: the model has no {missing[0]}; see tandem.device.ClientModel.")
    shape, classes = model.input_shape, model.num_classes
    if not isinstance(shape, tuple) or not all(isinstance(n, int) and n > 0 for n in shape):
        raise InputError(f"{source}: input_shape is {short_repr(shape)}; make it a tuple of positive integers.")
    if not isinstance(classes, int) or classes < 1:
        raise InputError(f"{source}: num_classes is {short_repr(classes)}; make it a positive integer.")
    try:
        predict_scores(model, np.zeros((1, *shape), np.float32))
        weights = model.get_weights()
        model.set_weights(weights)
    except Exception as error:
        raise InputError(f"{source}: the model cannot be used ({_describe(error)}).") from None
    if not isinstance(weights, dict) or not all(isinstance(array, np.ndarray) for array in weights.values()):
        raise InputError(f"{source}: get_weights must return a dict of NumPy arrays.")


def predict_scores(model: ClientModel, inputs: Inputs) -> NDArray[np.float32]:
    """Return the scores of a model, [inputs, classes]; raises ValueError if they have another shape."""
    scores = np.asarray(model.predict(inputs), np.float32)
    expected = (len(inputs), model.num_classes)
    if scores.shape != expected:
        raise ValueError(f"predict returned the shape {list(scores.shape)} instead of {list(expected)}")
    return scores


def _describe(error: Exception) -> str:
    return one_line(f"{type(error).__name__}: {error}")[:200]
