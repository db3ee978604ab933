"""The system model: federated edge learning as pure functions over small pytrees, one module a part of the paper."""

from tandem.feel.constraints import CONSTRAINTS, Violations
from tandem.feel.env import finished, reset, serve_all, step, step_or_restart
from tandem.feel.objectives import OBJECTIVES
from tandem.feel.observation import Observation, observation_size, observe
from tandem.feel.shield import may_train
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System, build_system

__all__ = [
    "CONSTRAINTS",
    "OBJECTIVES",
    "Action",
    "FleetState",
    "Observation",
    "RoundOutcome",
    "System",
    "Violations",
    "build_system",
    "finished",
    "may_train",
    "observation_size",
    "observe",
    "reset",
    "serve_all",
    "step",
    "step_or_restart",
]
