"""The deployed scheduler: it turns reports of devices into decisions, with NumPy alone.

- ``messages``: what goes in and comes out: ``FleetReport``, ``OperatingPoint``, ``FleetDecision``, and the errors.
- ``policy_file``: the file that ``tandem export`` writes: weights, normalisation, fleet, front and metadata.
- ``fleet``: the devices that decisions are made for, with the worst-case bounds of the shield.
- ``numpy_policy``, ``numpy_shield``: the NumPy versions of ``tandem.policy`` and ``tandem.feel.shield``.
- ``scheduler``: ``Scheduler``, which uses all of them.
- ``export``, ``onnx_export``: write the file from a run.
- ``simulated_fleet``: a fleet of the simulator that is scheduled from outside.
- ``reports``, ``fleet_decider``: let the scheduler decide for states of the simulator, and for fleets over Flower.
- ``estimation``, ``tuning``: background fine-tuning on recorded rounds.

>>> from tandem.serving import OperatingPoint, Scheduler
>>> scheduler = Scheduler.open("policy.safetensors", OperatingPoint(max_latency_s=3.0))  # doctest: +SKIP
>>> decision = scheduler.decide(report)  # doctest: +SKIP
>>> decision.frequency_hz, decision.explain("camera-3")  # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from tandem.lazy import lazy_attributes
from tandem.serving.fleet import Fleet
from tandem.serving.messages import (
    DeviceProfile,
    FleetDecision,
    FleetMismatchError,
    FleetReport,
    OperatingPoint,
    PolicyChoice,
    ReportError,
    ShieldRule,
)
from tandem.serving.policy_file import PolicyFile, read_policy_file, write_policy_file
from tandem.serving.scheduler import Scheduler

if TYPE_CHECKING:
    from tandem.serving.client import Client

__all__ = [
    "Client",
    "DeviceProfile",
    "Fleet",
    "FleetDecision",
    "FleetMismatchError",
    "FleetReport",
    "OperatingPoint",
    "PolicyChoice",
    "PolicyFile",
    "ReportError",
    "Scheduler",
    "ShieldRule",
    "read_policy_file",
    "write_policy_file",
]


# httpx, which the client needs, belongs to the extra ``serve``.
__getattr__ = lazy_attributes(__name__, {"Client": "tandem.serving.client"})
