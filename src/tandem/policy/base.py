"""The interface of a policy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tandem.feel.environment import Environment
from tandem.feel.state import Action, FleetState
from tandem.feel.types import RandomKey


@runtime_checkable
class Policy(Protocol):
    """A heuristic or a trained network. It is a pytree, so that it can be traced and stacked."""

    def __call__(self, environment: Environment, state: FleetState, key: RandomKey) -> Action:
        """Return the action of every device at the start of a round."""
