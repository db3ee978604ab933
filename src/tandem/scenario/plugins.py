"""The parts of a scenario that come in kinds: arrivals, fading, accuracy mapping.

To add a kind, define a subclass with a ``kind`` of its own here or in your own module (docs/extending.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tandem.scenario.base import ConfigModel, PluginConfig
from tandem.scenario.units import Decibels, Real, Seconds


class ArrivalsConfig(PluginConfig):
    """How requests come in, given a device's mean rate."""


class ConstantArrivalsConfig(ArrivalsConfig):
    """The paper's: d = lambda * L, to the fraction of a request."""

    kind: Literal["constant"] = "constant"


class PoissonArrivalsConfig(ArrivalsConfig):
    """Whole requests, Poisson with mean lambda * L."""

    kind: Literal["poisson"] = "poisson"


class TraceArrivalsConfig(ArrivalsConfig):
    """Recorded rates: CSV with ``time_s`` and one column per device, requests per second from that time on.

    The trace takes the place of ``request_rate_per_s`` and of the devices' rate factors.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    repeat: bool = False


class FadingConfig(PluginConfig):
    """How a device's channel gain varies from round to round about its path loss."""


class StaticFadingConfig(FadingConfig):
    """No fading: the gain is the path loss, in every round."""

    kind: Literal["static"] = "static"


class RayleighFadingConfig(FadingConfig):
    """No line of sight: the power gain is exponential, drawn anew each round."""

    kind: Literal["rayleigh"] = "rayleigh"


class RicianFadingConfig(FadingConfig):
    """Line of sight of ``k_db`` over the scattered power, drawn anew each round."""

    kind: Literal["rician"] = "rician"
    k_db: Decibels


class TraceFadingConfig(FadingConfig):
    """Recorded gains: CSV with ``time_s`` and one column per device, the channel gain in dB from that time on.

    The trace takes the place of distance, path loss and shadowing.
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
    """How requests change over time, on each device in its own way; at time 0 they are what the model was made for."""

    time_scale_s: Seconds = 100.0  # in which they become something else
    appearance: Strength = 1.0  # how much light, sharpness and position change; 0 is not at all
    classes: Strength = 1.0  # how much the shares of the classes change
    shared: Annotated[Real, Field(ge=0, le=1)] = 0.7  # part of the change that all devices have in common


class TaskConfig(PluginConfig):
    """Data, a model and a stream of requests."""

    drift: DriftConfig = DriftConfig()
    learning_rate: Annotated[Real, Field(gt=0, le=100)]  # of the U full-batch gradient steps
    pretrained_path: Path | None = None  # the model to start from; else 'tandem pretrain's, or the package's


class DigitsTaskConfig(TaskConfig):
    """Handwritten digits of 8 by 8 pixels, which scikit-learn brings along."""

    kind: Literal["digits"] = "digits"
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.3


class Cifar10TaskConfig(TaskConfig):
    """CIFAR-10 from a folder of the user's: the original Python batches, or Parquet with ``img`` and ``label``."""

    kind: Literal["cifar10"] = "cifar10"
    path: Path
    # Four times as much, and the first rounds undo what pre-training did (docs/federated.md).
    learning_rate: Annotated[Real, Field(gt=0, le=100)] = 0.002
