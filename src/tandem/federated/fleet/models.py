"""Models that have come from elsewhere, checked before anybody uses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tandem.federated.fleet.messages import GarbledError, Weights
from tandem.federated.learning import Model
from tandem.runs.weights import arrays_of, filled

LARGEST = 1e6  # of a weight: beyond it a model has diverged, and its average with others would be no model either


def model_of(weights: Weights, like: Model) -> Model:
    """The model of these weights, if they are finite and have the places, shapes and types of ``like``."""
    needed = arrays_of(like)
    if weights.keys() != needed.keys():
        raise GarbledError(f"weights: they are of another model, with {_differing(weights, needed)}.")
    for name, array in weights.items():
        wanted = needed[name]
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise GarbledError(f"weights: {name} is {found} and not {wanted.dtype}{list(wanted.shape)}.")
        if not np.isfinite(array).all() or np.abs(array).max(initial=0) > LARGEST:
            raise GarbledError(f"weights: {name} holds numbers that are not finite, or beyond {LARGEST:g}.")
    checked: Model = filled(like, weights, Path("message"))
    return checked


def _differing(weights: Weights, needed: Weights) -> str:
    name = sorted(weights.keys() ^ needed.keys())[0]
    return f"{name} {'that ours lacks' if name in weights else 'missing'}"
