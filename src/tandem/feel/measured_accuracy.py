"""Where accuracy is measured and not estimated: real models behind the simulated devices.

The mapping G estimates accuracy from volumes and ages. A ground truth has models and samples of its own, follows what
the simulator does with them, and counts right answers. The scheduler still sees only the estimate, as in the paper; the
objectives and the reward are the truth's.
"""

from __future__ import annotations

import pkgutil
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import equinox as eqx

from tandem.feel.types import DeviceFlags, PerDevice, RandomKey, Scalar
from tandem.scenario.schema import Scenario

if TYPE_CHECKING:
    from tandem.feel.system import System

# What stands behind a scenario's task is a layer further down, and imported only where there is a task.
BUILDER = "tandem.federated.simulation:build_truth"


class RoundInfo(eqx.Module):
    """What a ground truth is told of a round."""

    train: DeviceFlags  # who trained instead of serving
    trained: DeviceFlags  # whose update arrived in time
    arrived: PerDevice  # d
    dropped: PerDevice  # of those, who found the queue full
    clock_s: Scalar  # at the start of the round
    duration_s: Scalar  # L


class MeasuredAccuracy(eqx.Module):
    """Models that are trained and asked. Its state travels in ``FleetState.truth``."""

    @abstractmethod
    def init(self, queue: PerDevice, idle_s: Scalar, key: RandomKey) -> Any:
        """The state in round 0, with the requests of an idle round waiting."""

    @abstractmethod
    def step(self, state: Any, facts: RoundInfo) -> tuple[Any, PerDevice]:
        """One round: the state after it, and the share of its requests that each device answered rightly.

        A device that served nothing has the accuracy it had when it last did.
        """

    def working_bytes(self) -> int:
        """The memory that a round takes beside the states of all fleets, at most, if it is enough to matter."""
        return 0


def build_measured_accuracy(scenario: Scenario, system: System) -> MeasuredAccuracy | None:
    """The ground truth a scenario asks for, if it does."""
    if scenario.accuracy.task is None:
        return None
    built: MeasuredAccuracy = pkgutil.resolve_name(BUILDER)(scenario, system)
    return built
