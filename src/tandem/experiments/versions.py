"""The paper's versions of baselines where ours have more: rows beside our versions, with the same budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandem.experiments.plotting import EVOLVED, SCALARISED
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial


@dataclass(frozen=True)
class Version:
    """An algorithm with changed hyperparameters, as a row of its own."""

    label: str
    algorithm: str
    config: tuple[tuple[str, Any], ...]  # changes to the hyperparameters of the scale

    def trials(self, scale: Scale) -> list[Trial]:
        """Return the trials on the paper's fleet, for all seeds."""
        return [scale.trial(self.algorithm, seed, **dict(self.config)) for seed in range(scale.seeds)]


PAPER_VERSIONS = (
    Version("S-PPO, its final policies only", SCALARISED, (("archive_size", 0),)),
    Version("MOEA/D without a warm start", EVOLVED, (("warm_start", 0.0),)),
)


def paper_versions(algorithms: Sequence[str]) -> list[Version]:
    """Return the paper's versions of the compared algorithms."""
    return [one for one in PAPER_VERSIONS if one.algorithm in algorithms]
