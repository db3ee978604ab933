"""The system model: federated edge learning as pure functions of pytrees, one module for each part of the paper."""

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
