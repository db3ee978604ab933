"""The accuracy in a learner's reward on a task: the estimate of a calibrated mapping, or the measurement itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.scenario import Scenario

ORACLE = "oracle"


@dataclass(frozen=True)
class RewardSource:
    """A mapping calibrated on a task, and the task that fronts are evaluated on.

    Every scheduler observes the mapping's estimates. The reward of a learner uses the estimate; the reward of an oracle
    uses measured accuracy.
    """

    task: str
    mapping: str
    kappa: tuple[float, float, float]
    decay_per_s: float  # rho
    pretrained: float
    episodes: int  # episodes per policy when a front is evaluated
    oracle: bool = False
    data: str | None = field(default=None, compare=False)  # local folder of the task's data; not part of the identity

    @property
    def name(self) -> str:
        """The name in data files and legends."""
        return ORACLE if self.oracle else self.mapping

    def as_oracle(self) -> RewardSource:
        """Return the oracle that observes this mapping's estimates."""
        return dataclasses.replace(self, oracle=True)

    def overrides(self, measured: bool) -> dict[str, Any]:
        """Return the overrides of a scenario in which accuracy is measured, or estimated by the mapping."""
        where = {} if self.data is None else {"path": self.data}
        return {
            "accuracy.mapping": {"kind": self.mapping, "kappa": list(self.kappa)},
            "accuracy.model_decay_per_s": self.decay_per_s,
            "accuracy.pretrained": self.pretrained,
            **({"accuracy.task": {"kind": self.task, **where}} if measured else {}),
        }

    def document(self) -> dict[str, Any]:
        """Return the reward source as a JSON document, without the folder of its data."""
        return {name: value for name, value in asdict(self).items() if name != "data"}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RewardSource:
        """Read a reward source from its JSON document; raises KeyError or TypeError if it is not valid."""
        return cls(**{**document, "kappa": tuple(document["kappa"])})

    @classmethod
    def from_calibration(cls, calibrated: Scenario, task: str, episodes: int, data: str | None) -> RewardSource:
        """Create a reward source with the mapping and the constants of a calibrated scenario."""
        accuracy = calibrated.accuracy
        mapping = accuracy.mapping.model_dump()
        decay, kappa = accuracy.model_decay_per_s, tuple(mapping["kappa"])
        return cls(task, mapping["kind"], kappa, decay, accuracy.pretrained, episodes, data=data)
