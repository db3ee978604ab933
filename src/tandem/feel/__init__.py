"""The system model: federated edge learning as pure functions of pytrees, one module for each part of the paper."""

from typing import TYPE_CHECKING

from tandem.lazy import lazy_attributes

if TYPE_CHECKING:
    from tandem.feel.constraints import CONSTRAINTS, Violations
    from tandem.feel.env import is_truncated, reset, serve_all, step
    from tandem.feel.environment import Environment
    from tandem.feel.observation import Observation, observe
    from tandem.feel.shield import action_mask
    from tandem.feel.state import Action, FleetState, RoundOutcome
    from tandem.feel.system import System, build_system

__all__ = [
    "CONSTRAINTS",
    "Action",
    "Environment",
    "FleetState",
    "Observation",
    "RoundOutcome",
    "System",
    "Violations",
    "action_mask",
    "build_system",
    "is_truncated",
    "observe",
    "reset",
    "serve_all",
    "step",
]

# Imported when first used: the plan of the shield does not need JAX, which takes a second to import.
_LAZY = {
    "CONSTRAINTS": "tandem.feel.constraints",
    "Action": "tandem.feel.state",
    "Environment": "tandem.feel.environment",
    "FleetState": "tandem.feel.state",
    "Observation": "tandem.feel.observation",
    "RoundOutcome": "tandem.feel.state",
    "System": "tandem.feel.system",
    "Violations": "tandem.feel.constraints",
    "action_mask": "tandem.feel.shield",
    "build_system": "tandem.feel.system",
    "is_truncated": "tandem.feel.env",
    "observe": "tandem.feel.observation",
    "reset": "tandem.feel.env",
    "serve_all": "tandem.feel.env",
    "step": "tandem.feel.env",
}


__getattr__ = lazy_attributes(__name__, _LAZY)
