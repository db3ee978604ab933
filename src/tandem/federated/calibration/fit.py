"""Fits of the accuracy mappings to measured accuracies, and their quality."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from tandem.federated.calibration.grid import Measurements
from tandem.feel.accuracy import AccuracyMapping, mappings_by_kind

Values = NDArray[np.float64]

STARTS = [(k2, k3) for k2 in (0.01, 0.3, 3.0) for k3 in (1e-3, 1e-2)]
SMALLEST, LARGEST = 1e-9, 1e6  # bounds of a constant; a scenario may have no larger one


@dataclass(frozen=True)
class FitQuality:
    """The deviation of estimates from measurements."""

    r2: float
    rmse: float

    @classmethod
    def from_residuals(cls, measured: Values, estimated: Values) -> FitQuality:
        """Compute R^2 and the root mean square error."""
        residual = float(np.mean((measured - estimated) ** 2))
        spread = float(np.var(measured))
        return cls(r2=1 - residual / spread if spread > 0 else float("nan"), rmse=float(np.sqrt(residual)))


@dataclass(frozen=True)
class Fit:
    """A mapping with fitted constants."""

    kind: str
    kappa: tuple[float, float, float]
    decay_per_s: float  # rho
    server: FitQuality  # of G(x, y) for a model of age 0
    device: FitQuality  # of exp(-rho delta) G(x, y) for models of all ages

    def estimate(self, samples: Values, data_age_s: Values, model_age_s: Values) -> Values:
        """Return exp(-rho delta) G(x, y), with G bounded to [0, 1] as in the simulator."""
        bare = mappings_by_kind()[self.kind].formula(np, samples, data_age_s, 1.0, *self.kappa[1:])
        server = np.clip(self.kappa[0] * bare, 0.0, 1.0)
        return np.asarray(np.exp(-self.decay_per_s * model_age_s) * server)

    def document(self) -> dict[str, Any]:
        """Return the fit as a JSON document."""
        return {
            "kind": self.kind,
            "kappa": list(self.kappa),
            "model_decay_per_s": self.decay_per_s,
            "server_accuracy": vars(self.server),
            "device_accuracy": vars(self.device),
        }


def fit_all(measured: Measurements) -> list[Fit]:
    """Fit every registered mapping; the first is the one with the smallest error of devices' accuracy."""
    decay = fit_decay(measured)
    fits = (_fit(kind, mapping, measured, decay) for kind, mapping in mappings_by_kind().items())
    return sorted(fits, key=lambda fit: fit.device.rmse)


def fit_decay(measured: Measurements) -> float:
    """Fit rho: least squares of Acc(delta) = exp(-rho delta) Acc(0) over all cells."""
    start = measured.accuracy[..., :1]

    def residuals(rate: Values) -> Values:
        return np.asarray((start * np.exp(-rate[0] * measured.model_age_s) - measured.accuracy).ravel())

    solution = scipy.optimize.least_squares(residuals, x0=[0.005], bounds=(0.0, 1.0))
    return float(solution.x[0])


def _fit(kind: str, mapping: type[AccuracyMapping], measured: Measurements, decay_per_s: float) -> Fit:
    x, y = (grid.ravel() for grid in np.meshgrid(measured.samples, measured.data_age_s, indexing="ij"))
    fresh = measured.accuracy[..., 0].ravel()

    def scale(logarithms: Values) -> tuple[float, Values]:
        """Return k1, which for given k2 and k3 solves a linear problem, and G / k1."""
        bare = mapping.formula(np, x, y, 1.0, *np.exp(logarithms))
        return float(bare @ fresh) / max(float(bare @ bare), SMALLEST), bare

    def residuals(logarithms: Values) -> Values:
        k1, bare = scale(logarithms)
        return np.asarray(k1 * bare - fresh)

    # Optimising logarithms keeps the constants positive at any scale. There are several starting points, because the
    # problem is ill-conditioned.
    bounds = np.log([SMALLEST, SMALLEST]), np.log([mapping.max_k2, LARGEST])
    starts = [np.log(start) for start in STARTS if start[0] < mapping.max_k2]
    solutions = [scipy.optimize.least_squares(residuals, start, bounds=bounds) for start in starts]
    best = min(solutions, key=lambda solution: float(solution.cost)).x
    k1, (k2, k3) = min(scale(best)[0], LARGEST), np.exp(best)
    kappa = (_round(k1), _round(k2), _round(k3))
    fit = Fit(kind, kappa, _round(decay_per_s), FitQuality(0, 0), FitQuality(0, 0))
    estimated = fit.estimate(*np.meshgrid(measured.samples, measured.data_age_s, measured.model_age_s, indexing="ij"))
    server, device = (
        FitQuality.from_residuals(fresh, estimated[..., 0].ravel()),
        FitQuality.from_residuals(measured.accuracy, estimated),
    )
    return dataclasses.replace(fit, server=server, device=device)


def _round(constant: float) -> float:
    """Round a constant to six significant digits, as in the scenario; measurements are not more precise."""
    return float(f"{constant:.6g}")
