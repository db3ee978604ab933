"""Comparison of estimated with measured accuracy, for each device and round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.feel.state import RoundOutcome

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Fidelity:
    """Accuracies of all rounds, [rounds of all seeds, devices]; NaN where a device answered no request."""

    measured: Values
    estimated: Values

    @classmethod
    def from_history(cls, outcomes: Iterable[RoundOutcome]) -> Fidelity:
        """Collect the rounds of one or more seeds, as ``runs.simulation.simulate_histories`` yields them."""
        measured, estimated = [], []
        for outcome in outcomes:
            assert outcome.estimated_accuracy is not None, "the scenario has no task: nothing was measured"
            answered = ~np.asarray(outcome.executed.train) & (np.asarray(outcome.served) >= 1)
            measured.append(np.where(answered, outcome.accuracy, np.nan))
            estimated.append(np.where(answered, outcome.estimated_accuracy, np.nan))
        return cls(np.concatenate(measured).astype(np.float64), np.concatenate(estimated).astype(np.float64))

    def summary(self, names: Sequence[str]) -> dict[str, Any]:
        """Return means, correlations and errors as a JSON document."""
        answered = ~np.isnan(self.measured)
        by_device = {
            name: _agreement(self.measured[answered[:, n], n], self.estimated[answered[:, n], n])
            for n, name in enumerate(names)
        }
        any_answered = answered.any(axis=1)
        rounds = [np.nanmean(values[any_answered], axis=1) for values in (self.measured, self.estimated)]
        return {
            **_agreement(self.measured[answered], self.estimated[answered]),
            # One device answers few requests in a round, so its share of correct answers is noisy; fleet means are not.
            "fleet_rounds": _agreement(*rounds),
            "by_device": by_device,
        }


def _agreement(measured: Values, estimated: Values) -> dict[str, Any]:
    """Return means, correlation (None if one of them is constant) and errors of the estimate."""
    if measured.size == 0:
        return {"rounds": 0, "measured": None, "estimated": None, "correlation": None, "rmse": None, "bias": None}
    varied = measured.std() > 0 and estimated.std() > 0
    return {
        "rounds": int(measured.size),
        "measured": float(measured.mean()),
        "estimated": float(estimated.mean()),
        "correlation": float(np.corrcoef(measured, estimated)[0, 1]) if varied else None,
        "rmse": float(np.sqrt(np.mean((estimated - measured) ** 2))),
        "bias": float(np.mean(estimated - measured)),
    }
