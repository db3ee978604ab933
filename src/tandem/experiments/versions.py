"""Versions of algorithms: rows with changed hyperparameters beside our defaults, with the same budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandem.experiments.plotting import EVOLVED, OURS, PROPOSED, SCALARISED
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial


@dataclass(frozen=True)
class Version:
    """An algorithm with changed hyperparameters, as a row of its own."""

    label: str
    algorithm: str
    config: tuple[tuple[str, Any], ...]  # changes to the hyperparameters of the scale

    def trials(self, scale: Scale, **setting: Any) -> list[Trial]:
        """Return the trials for all seeds, on the paper's fleet or in a setting (arguments of ``Scale.trial``)."""
        return [scale.trial(self.algorithm, seed, **setting, **dict(self.config)) for seed in range(scale.seeds)]


PAPER_VERSIONS = (
    Version("S-PPO, its final policies only", SCALARISED, (("archive_size", 0),)),
    Version("MOEA/D without a warm start", EVOLVED, (("warm_start", 0.0),)),
)

# Without a shield, PC-PPO credits the penalty of a violation to its causes, and the paper's algorithms to the fleet.
CREDIT_VERSIONS = (
    Version("PC-PPO, penalty credited to the fleet", OURS, (("violation_credit", "fleet"),)),
    Version("C-MOPPO, penalty credited to its causes", PROPOSED, (("violation_credit", "device"),)),
)


def select_versions(versions: Sequence[Version], algorithms: Sequence[str]) -> list[Version]:
    """Return the versions of the compared algorithms."""
    return [one for one in versions if one.algorithm in algorithms]
