"""The accuracy mappings fitted to what was measured, and how well they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from tandem.federated.calibration.grid import Measurements
from tandem.scenario.plugins import (
    AccuracyMappingConfig,
    LogExponentialConfig,
    LogRationalConfig,
    PowerLawExponentialConfig,
)

Values = NDArray[np.float64]
Shape = Callable[[Values, Values, float, float], Values]

# G(x, y) / k1, in double precision and for whole grids; a test holds them to those of the simulator.
SHAPES: dict[type[AccuracyMappingConfig], Shape] = {
    LogExponentialConfig: lambda x, y, k2, k3: np.log1p(k2 * x) * np.exp(-k3 * y),
    PowerLawExponentialConfig: lambda x, y, k2, k3: x**k2 * np.exp(-k3 * y),
    LogRationalConfig: lambda x, y, k2, k3: np.log1p(k2 * x) / (1 + k3 * y),
}
STARTS = [(k2, k3) for k2 in (0.01, 0.3, 3.0) for k3 in (1e-3, 1e-2)]
SMALLEST, LARGEST = 1e-9, 1e6  # of a constant; a scenario may say no more
STEEPEST = 3.0  # exponent of a power law that is still to have diminishing returns within reach


@dataclass(frozen=True)
class FitQuality:
    """How far estimates are from what was measured."""

    r2: float
    rmse: float

    @classmethod
    def from_residuals(cls, measured: Values, estimated: Values) -> FitQuality:
        """R^2 and the root of the mean square error."""
        residual = float(np.mean((measured - estimated) ** 2))
        spread = float(np.var(measured))
        return cls(r2=1 - residual / spread if spread > 0 else float("nan"), rmse=float(np.sqrt(residual)))


@dataclass(frozen=True)
class Fit:
    """One mapping with its constants."""

    kind: str
    kappa: tuple[float, float, float]
    decay_per_s: float  # rho
    server: FitQuality  # of G(x, y) for a model of age 0
    device: FitQuality  # of exp(-rho delta) G(x, y) for models of all ages

    def estimate(self, samples: Values, data_age_s: Values, model_age_s: Values) -> Values:
        """exp(-rho delta) G(x, y), bounded to [0, 1] as in the simulator."""
        shape = next(shape for kind, shape in SHAPES.items() if _name(kind) == self.kind)
        server = np.clip(self.kappa[0] * shape(samples, data_age_s, *self.kappa[1:]), 0.0, 1.0)
        return np.asarray(np.exp(-self.decay_per_s * model_age_s) * server)

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kind": self.kind,
            "kappa": list(self.kappa),
            "model_decay_per_s": self.decay_per_s,
            "server_accuracy": vars(self.server),
            "device_accuracy": vars(self.device),
        }


def fit_all(measured: Measurements) -> list[Fit]:
    """Every mapping of the paper, the best first: the one whose estimates of devices' accuracy err least."""
    decay = fit_decay(measured)
    return sorted((_fit(kind, measured, decay) for kind in SHAPES), key=lambda fit: fit.device.rmse)


def fit_decay(measured: Measurements) -> float:
    """rho: least squares of Acc(delta) = exp(-rho delta) Acc(0) over all cells."""
    start = measured.accuracy[..., :1]

    def residuals(rate: Values) -> Values:
        return np.asarray((start * np.exp(-rate[0] * measured.model_age_s) - measured.accuracy).ravel())

    found = scipy.optimize.least_squares(residuals, x0=[0.005], bounds=(0.0, 1.0))
    return float(found.x[0])


def _fit(kind: type[AccuracyMappingConfig], measured: Measurements, decay_per_s: float) -> Fit:
    shape = SHAPES[kind]
    x, y = (grid.ravel() for grid in np.meshgrid(measured.samples, measured.data_age_s, indexing="ij"))
    fresh = measured.accuracy[..., 0].ravel()

    def scale(logarithms: Values) -> tuple[float, Values]:
        """k1, which for given k2 and k3 is the solution of a linear problem, and G / k1."""
        bare = shape(x, y, *np.exp(logarithms))
        return float(bare @ fresh) / max(float(bare @ bare), SMALLEST), bare

    def residuals(logarithms: Values) -> Values:
        k1, bare = scale(logarithms)
        return np.asarray(k1 * bare - fresh)

    # By logarithms the constants stay positive whatever their size; from several starts, for valleys are long.
    highest = STEEPEST if kind is PowerLawExponentialConfig else LARGEST
    bounds = np.log([SMALLEST, SMALLEST]), np.log([highest, LARGEST])
    starts = [np.log(start) for start in STARTS if start[0] < highest]
    tries = [scipy.optimize.least_squares(residuals, start, bounds=bounds) for start in starts]
    best = min(tries, key=lambda found: float(found.cost)).x
    k1, (k2, k3) = min(scale(best)[0], LARGEST), np.exp(best)
    kappa = (_shortened(k1), _shortened(k2), _shortened(k3))
    made = Fit(_name(kind), kappa, _shortened(decay_per_s), FitQuality(0, 0), FitQuality(0, 0))
    estimated = made.estimate(*np.meshgrid(measured.samples, measured.data_age_s, measured.model_age_s, indexing="ij"))
    server, device = (
        FitQuality.from_residuals(fresh, estimated[..., 0].ravel()),
        FitQuality.from_residuals(measured.accuracy, estimated),
    )
    return dataclasses.replace(made, server=server, device=device)


def _name(kind: type[AccuracyMappingConfig]) -> str:
    return str(kind.model_fields["kind"].default)


def _shortened(constant: float) -> float:
    """As a scenario will have it: six digits are more than a measurement gives."""
    return float(f"{constant:.6g}")
