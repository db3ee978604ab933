"""What accuracy means to a cell where it can be measured: how it is estimated, and by which task it is found out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tandem.scenario import Scenario

ORACLE = "oracle"


@dataclass(frozen=True)
class RewardSource:
    """A mapping as calibrated on a task, which a scheduler sees the estimates of; and the task, which fronts are
    measured by. Whoever learns is rewarded by the estimate, an oracle by what is measured."""

    task: str
    mapping: str
    kappa: tuple[float, float, float]
    decay_per_s: float  # rho
    pretrained: float
    episodes: int  # that each policy of a front is measured by
    oracle: bool = False
    data: str | None = field(default=None, compare=False)  # where the task's are here: no part of what it is

    @property
    def name(self) -> str:
        """What learns from it, in data and legends."""
        return ORACLE if self.oracle else self.mapping

    def as_oracle(self) -> RewardSource:
        """The same for an oracle."""
        return dataclasses.replace(self, oracle=True)

    def overrides(self, measured: bool) -> dict[str, Any]:
        """Of a scenario, with accuracy estimated or measured."""
        where = {} if self.data is None else {"path": self.data}
        return {
            "accuracy.mapping": {"kind": self.mapping, "kappa": list(self.kappa)},
            "accuracy.model_decay_per_s": self.decay_per_s,
            "accuracy.pretrained": self.pretrained,
            **({"accuracy.task": {"kind": self.task, **where}} if measured else {}),
        }

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {name: value for name, value in asdict(self).items() if name != "data"}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RewardSource:
        """From JSON; raises KeyError or TypeError if it is not one."""
        return cls(**{**document, "kappa": tuple(document["kappa"])})

    @classmethod
    def from_calibration(cls, calibrated: Scenario, task: str, episodes: int, data: str | None) -> RewardSource:
        """As a calibrated scenario has it."""
        accuracy = calibrated.accuracy
        mapping = accuracy.mapping.model_dump()
        decay, kappa = accuracy.model_decay_per_s, tuple(mapping["kappa"])
        return cls(task, mapping["kind"], kappa, decay, accuracy.pretrained, episodes, data=data)
