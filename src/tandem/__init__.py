"""Tandem: scheduling training and inference on fleets of edge devices."""

import importlib
from typing import TYPE_CHECKING, Any

from tandem.errors import InputError
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


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tandem' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
