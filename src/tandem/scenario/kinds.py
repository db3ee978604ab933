"""The parts of a scenario that come in kinds: arrivals, fading, accuracy mapping.

To add a kind, define a subclass with a ``kind`` of its own here or in your own module (docs/extending.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from tandem.scenario.parts import Plug
from tandem.scenario.quantities import Decibels, Real


class Arrivals(Plug):
    """How requests come in, given a device's mean rate."""


class ConstantArrivals(Arrivals):
    """The paper's: d = lambda * L, to the fraction of a request."""

    kind: Literal["constant"] = "constant"


class PoissonArrivals(Arrivals):
    """Whole requests, Poisson with mean lambda * L."""

    kind: Literal["poisson"] = "poisson"


class TraceArrivals(Arrivals):
    """Recorded rates: CSV with ``time_s`` and one column per device, requests per second from that time on.

    The trace takes the place of ``request_rate_per_s`` and of the devices' rate factors.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    repeat: bool = False


class Fading(Plug):
    """How a device's channel gain varies from round to round about its path loss."""


class StaticFading(Fading):
    """No fading: the gain is the path loss, in every round."""

    kind: Literal["static"] = "static"


class RayleighFading(Fading):
    """No line of sight: the power gain is exponential, drawn anew each round."""

    kind: Literal["rayleigh"] = "rayleigh"


class RicianFading(Fading):
    """Line of sight of ``k_db`` over the scattered power, drawn anew each round."""

    kind: Literal["rician"] = "rician"
    k_db: Decibels


class TraceFading(Fading):
    """Recorded gains: CSV with ``time_s`` and one column per device, the channel gain in dB from that time on.

    The trace takes the place of distance, path loss and shadowing.
    """

    kind: Literal["trace"] = "trace"
    path: Path
    repeat: bool = False


Coefficient = Annotated[Real, Field(ge=0, le=1e6)]
Kappa = tuple[Coefficient, Coefficient, Coefficient]


class AccuracyMapping(Plug):
    """The function G(x, y): server accuracy from x samples of mean age y."""


class LogExponential(AccuracyMapping):
    """G = k1 log(1 + k2 x) exp(-k3 y), the paper's default."""

    kind: Literal["log-exponential"] = "log-exponential"
    kappa: Kappa


class PowerLawExponential(AccuracyMapping):
    """G = k1 x^k2 exp(-k3 y)."""

    kind: Literal["power-law-exponential"] = "power-law-exponential"
    kappa: Kappa


class LogRational(AccuracyMapping):
    """G = k1 log(1 + k2 x) / (1 + k3 y)."""

    kind: Literal["log-rational"] = "log-rational"
    kappa: Kappa
