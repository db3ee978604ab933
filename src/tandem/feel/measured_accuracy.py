"""The interface of a measured-accuracy model: real models behind the simulated devices.

Without one, the mapping G estimates accuracy from data volumes and ages. A measured-accuracy model holds models and
samples, is stepped in every round of the simulator, and counts correct answers. The scheduler still observes only the
estimate, as in the paper; objectives and rewards use the measured accuracy.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx

from tandem.feel.types import DeviceFlags, PerDevice, RandomKey, Scalar


class RoundInfo(eqx.Module):
    """The part of a round that a measured-accuracy model needs."""

    train: DeviceFlags  # devices that trained instead of serving
    trained: DeviceFlags  # those of them whose update arrived in time
    arrived: PerDevice  # d
    dropped: PerDevice  # requests of d that did not fit in the queue
    clock_s: Scalar  # at the start of the round
    duration_s: Scalar  # L


class MeasuredAccuracy(eqx.Module):
    """Base class of measured-accuracy models. The simulator carries its state in ``FleetState.measured``."""

    @abstractmethod
    def init(self, queue: PerDevice, idle_s: Scalar, key: RandomKey) -> Any:
        """Return the state before round 0, with the requests of an idle round waiting."""

    @abstractmethod
    def step(self, state: Any, info: RoundInfo) -> tuple[Any, PerDevice]:
        """Return the state after a round, and the share of its requests that each device answered correctly.

        A device that served nothing keeps the accuracy of the last round in which it served.
        """

    def working_bytes(self) -> int:
        """Return an upper bound of the memory that a round needs in addition to the state; 0 if it is negligible."""
        return 0
