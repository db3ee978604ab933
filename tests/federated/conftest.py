"""A cache of its own for pre-trained models, and the digits task on a small fleet."""

import numpy as np
import pytest

from tandem.federated.build import build_system
from tandem.federated.data import LabelledImages, Pool
from tandem.feel import System
from tandem.scenario import load_scenario

DIGITS = {"accuracy.task": "digits", "fleet.size": 5}


@pytest.fixture(autouse=True, scope="session")
def _models(cache: None) -> None:
    """No test looks into the user's cache."""


@pytest.fixture(scope="session")
def digits_system(cache: None) -> System:
    return build_system(load_scenario("paper", DIGITS))


@pytest.fixture(scope="session")
def numbered_pool() -> Pool:
    """A hundred images of 2 by 2 pixels, all different: the first pixel says which."""
    images = np.zeros((100, 2, 2, 1), np.uint8)
    images[:, 0, 0, 0] = np.arange(100)
    return Pool.from_images(LabelledImages(images, (np.arange(100) // 10).astype(np.int32)), 10)
