"""Tandem: scheduling training and inference on fleets of edge devices."""

from typing import TYPE_CHECKING

from tandem.errors import InputError
from tandem.lazy import lazy_attributes
from tandem.registration import register

if TYPE_CHECKING:
    from tandem.api import build_system, open_run, train
    from tandem.policy import HEURISTICS
    from tandem.runs import simulate
    from tandem.scenario import Scenario, load_scenario

__version__ = "0.1.0"

__all__ = [
    "HEURISTICS",
    "InputError",
    "Scenario",
    "__version__",
    "build_system",
    "load_scenario",
    "open_run",
    "simulate",
    "train",
]

# Imported when first used, so that 'tandem --help' does not wait for JAX and pydantic models.
_LAZY = {
    "HEURISTICS": "tandem.policy",
    "Scenario": "tandem.scenario",
    "build_system": "tandem.api",
    "load_scenario": "tandem.scenario",
    "open_run": "tandem.api",
    "simulate": "tandem.runs",
    "train": "tandem.api",
}

register()


__getattr__ = lazy_attributes(__name__, _LAZY)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
