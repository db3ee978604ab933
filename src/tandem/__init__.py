"""Tandem: scheduling training and inference on fleets of edge devices."""

import importlib
from typing import TYPE_CHECKING, Any

from tandem.errors import InputError
from tandem.registration import register
from tandem.scenario import Scenario, load_scenario

if TYPE_CHECKING:
    from tandem.api import build_system, open_run, train
    from tandem.policy import HEURISTICS
    from tandem.runs import simulate

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

# What needs JAX is imported when first asked for: 'tandem --help' should not wait a second for it.
_LATER = {
    "HEURISTICS": "tandem.policy",
    "build_system": "tandem.api",
    "open_run": "tandem.api",
    "simulate": "tandem.runs",
    "train": "tandem.api",
}

register()


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tandem' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
