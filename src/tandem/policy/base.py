"""What everything that decides has in common."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from tandem.feel.state import Action, FleetState
from tandem.feel.system import System
from tandem.feel.types import RandomKey


@runtime_checkable
class Policy(Protocol):
    """Anything that decides: a rule, or a trained network. A pytree, so that it can be traced and stacked."""

    def __call__(self, system: System, state: FleetState, key: RandomKey) -> Action:
        """Decide for every device at the start of a round."""
