"""The tasks a scenario may name: what devices really classify, so that accuracy is measured and not estimated.

To add a task, define a subclass with a ``kind`` of its own here or in your own module (docs/extending.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tandem.scenario.parts import Part, Plug
from tandem.scenario.quantities import Real, Seconds

Strength = Annotated[Real, Field(ge=0, le=10)]


class Drift(Part):
    """How requests change over time, on each device in its own way; at time 0 they are what the model was made for."""

    time_scale_s: Seconds = 100.0  # in which they become something else
    appearance: Strength = 1.0  # how much light, sharpness and position change; 0 is not at all
    classes: Strength = 1.0  # how much the shares of the classes change
    shared: Annotated[Real, Field(ge=0, le=1)] = 0.7  # part of the change that all devices have in common


class Task(Plug):
    """Data, a model and a stream of requests."""

    drift: Drift = Drift()
    learning_rate: Annotated[Real, Field(gt=0, le=100)]  # of the U full-batch gradient steps
    pretrained_path: Path | None = None  # the model to start from; else 'tandem pretrain's, or the package's


class DigitsTask(Task):
    """Handwritten digits of 8 by 8 pixels, which scikit-learn brings along."""

    kind: Literal["digits"] = "digits"
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.3


class Cifar10Task(Task):
    """CIFAR-10 from a folder of the user's: the original Python batches, or Parquet with ``img`` and ``label``."""

    kind: Literal["cifar10"] = "cifar10"
    path: Path
    # Four times as much, and the first rounds undo what pre-training did (docs/federated.md).
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.002
