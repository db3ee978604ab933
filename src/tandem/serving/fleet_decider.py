"""The deployed scheduler as the decider of a fleet's server (``tandem.federated.fleet``)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tandem.federated.fleet.config import FleetConfig
from tandem.federated.fleet.decider import Decider, Decision, Flags, PolicyDecider, find_policy
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import RandomKey
from tandem.policy.distributions import mode_uniforms
from tandem.runs.run import Run
from tandem.scenario import Scenario
from tandem.serving.export import export_run
from tandem.serving.fleet import Single
from tandem.serving.messages import OperatingPoint
from tandem.serving.numpy_policy import COLUMNS, highest_columns
from tandem.serving.reports import report_from_state
from tandem.serving.scheduler import Scheduler


@dataclass(frozen=True)
class SchedulerDecider:
    """Decides by a scheduler whose fleet is that of ``system``. Devices that are not present are late: they serve."""

    scheduler: Scheduler
    system: System

    def __call__(self, state: FleetState, present: Flags, key: RandomKey) -> Decision:
        report = report_from_state(self.scheduler.fleet.names, self.system, state, present)
        # A device may report any age, and the scheduler refuses absurd ones. A round must not fail for one device.
        columns = {name: np.minimum(getattr(report, name), highest) for name, highest in self._highest.items()}
        uniform = np.asarray(mode_uniforms(key, self.system.size)) if self._samples_modes else None
        decision = self.scheduler.decide(dataclasses.replace(report, **columns), uniform)
        return Decision(decision.train, decision.power_w, decision.frequency_hz)

    @cached_property
    def _highest(self) -> dict[str, Single]:
        _mode, *others = zip(COLUMNS, highest_columns(self.scheduler.fleet), strict=True)
        return dict(others)

    @property
    def _samples_modes(self) -> bool:
        return bool(self.scheduler.policy_file.network["sampling"] == "sample-modes")


def load_decider(config: FleetConfig, scenario: Scenario, system: System) -> Decider:
    """Return what decides for the fleet of a scenario: a heuristic in JAX, or the scheduler for a trained run.

    The scheduler decides with the constants and the shield of this fleet, which may differ from the run's.
    """
    policy = find_policy(config, system)
    if not isinstance(policy, Run):
        return PolicyDecider(system, policy)
    file = export_run(policy, (scenario, system))
    return SchedulerDecider(Scheduler(file, OperatingPoint(preference=config.weights)), system)
