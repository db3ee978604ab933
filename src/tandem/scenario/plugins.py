"""The parts of a scenario that have several kinds: arrivals, fading, accuracy mapping, task.

To add a kind, define a subclass with its own ``kind``, here or in your own module (docs/extending.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tandem.scenario.base import ConfigModel, PluginConfig
from tandem.scenario.units import Decibels, Real, Seconds


class ArrivalsConfig(PluginConfig):
    """The arrival process of requests, given a device's mean rate."""


class ConstantArrivalsConfig(ArrivalsConfig):
    """The paper's arrivals: d = lambda * L, including fractions of a request."""

    kind: Literal["constant"] = "constant"


class PoissonArrivalsConfig(ArrivalsConfig):
    """Whole requests, Poisson distributed with mean lambda * L."""

    kind: Literal["poisson"] = "poisson"


class TraceArrivalsConfig(ArrivalsConfig):
    """Recorded rates: a CSV file with ``time_s`` and one column per device, requests per second from that time on.

    The trace replaces ``request_rate_per_s`` and the devices' rate factors.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    repeat: bool = False


class FadingConfig(PluginConfig):
    """The variation of a device's channel gain from round to round about its path loss."""


class StaticFadingConfig(FadingConfig):
    """No fading: the gain is the path loss in every round."""

    kind: Literal["static"] = "static"


class RayleighFadingConfig(FadingConfig):
    """No line of sight: the power gain is exponentially distributed and drawn in every round."""

    kind: Literal["rayleigh"] = "rayleigh"


class RicianFadingConfig(FadingConfig):
    """A line of sight of ``k_db`` over the scattered power; the gain is drawn in every round."""

    kind: Literal["rician"] = "rician"
    k_db: Decibels


class TraceFadingConfig(FadingConfig):
    """Recorded gains: a CSV file with ``time_s`` and one column per device, the channel gain in dB from that time on.

    The trace replaces distance, path loss and shadowing.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    repeat: bool = False


Coefficient = Annotated[Real, Field(ge=0, le=1e6)]
Kappa = tuple[Coefficient, Coefficient, Coefficient]


class AccuracyMappingConfig(PluginConfig):
    """The function G(x, y): server accuracy from x samples of mean age y, with constants kappa = (k1, k2, k3)."""

    kappa: Kappa


class LogExponentialConfig(AccuracyMappingConfig):
    """G = k1 log(1 + k2 x) exp(-k3 y), the paper's default."""

    kind: Literal["log-exponential"] = "log-exponential"


class PowerLawExponentialConfig(AccuracyMappingConfig):
    """G = k1 x^k2 exp(-k3 y)."""

    kind: Literal["power-law-exponential"] = "power-law-exponential"


class LogRationalConfig(AccuracyMappingConfig):
    """G = k1 log(1 + k2 x) / (1 + k3 y)."""

    kind: Literal["log-rational"] = "log-rational"


Strength = Annotated[Real, Field(ge=0, le=10)]


class DriftConfig(ConfigModel):
    """The change of requests over time, different on each device; at time 0 they are what the model was trained for."""

    time_scale_s: Seconds = 100.0  # time in which requests change substantially
    appearance: Strength = 1.0  # strength of changes in light, sharpness and position; 0 is none
    classes: Strength = 1.0  # strength of changes in class shares; 0 is none
    shared: Annotated[Real, Field(ge=0, le=1)] = 0.7  # part of the change that is common to all devices


class TaskConfig(PluginConfig):
    """A classification task: data, a model and a stream of requests."""

    drift: DriftConfig = DriftConfig()
    learning_rate: Annotated[Real, Field(gt=0, le=100)]  # of the U full-batch gradient steps
    pretrained_path: Path | None = None  # file of the initial model; default: the cached or the package's model


class DigitsTaskConfig(TaskConfig):
    """Handwritten digits of 8 by 8 pixels, which are part of scikit-learn."""

    kind: Literal["digits"] = "digits"
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.3


class Cifar10TaskConfig(TaskConfig):
    """CIFAR-10 from the user's folder: the original Python batches, or Parquet files with ``img`` and ``label``."""

    kind: Literal["cifar10"] = "cifar10"
    path: Path
    # At four times this rate, the first rounds undo the pre-training (docs/federated.md).
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.002
