"""Who decides in a fleet: a function from the estimated state to the mode, power and frequency of every device.

The server of a fleet takes any ``Decider``. This module has the one of policies in JAX, such as the heuristics. That of
trained runs is the deployed scheduler, ``tandem.serving.fleet_decider``. It is passed in, since ``tandem.serving`` is
above this package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError, unknown_name
from tandem.federated.build import build_system
from tandem.federated.fleet.config import FleetConfig
from tandem.feel.dynamics import bound_action
from tandem.feel.environment import Environment
from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.feel.types import DeviceFlags, PerDevice, RandomKey
from tandem.policy import HEURISTICS
from tandem.policy.base import Policy
from tandem.runs.evaluation import check_fits
from tandem.runs.run import Run, open_run
from tandem.scenario import Scenario

Flags = NDArray[np.bool_]
Column = NDArray[np.floating[Any]]


class Decision(NamedTuple):
    """The decision for each device, as it is sent: after the shield, in watts and hertz."""

    train: Flags  # else serve
    power_w: Column  # a device that serves does not transmit and ignores it
    frequency_hz: Column


class Decider(Protocol):
    """Decides for a fleet. Equal arguments give equal decisions, so that a round can be repeated."""

    def __call__(self, state: FleetState, present: Flags, key: RandomKey) -> Decision:
        """Decide for the devices in ``state``; those that are not ``present`` serve.

        ``key`` is the randomness of the round, for policies that sample.
        """


# Loads the decider of a run's configuration, for the fleet of a scenario. ``tandem.serving.fleet_decider`` has one.
LoadDecider = Callable[[FleetConfig, Scenario, System], Decider]


@dataclass(frozen=True)
class PolicyDecider:
    """Decides by a policy in JAX, and the shield of the simulator."""

    system: System
    policy: Policy

    def __call__(self, state: FleetState, present: Flags, key: RandomKey) -> Decision:
        decided = _decide(self.system, self.policy, state, jnp.asarray(present), key)
        return Decision(*(np.asarray(column) for column in decided))


@eqx.filter_jit
def _decide(
    system: System, policy: Policy, state: FleetState, present: DeviceFlags, key: RandomKey
) -> tuple[DeviceFlags, PerDevice, PerDevice]:
    action = bound_action(system, state, policy(Environment(system), state, key), present)
    return action.train, system.devices.power_w(action.power), system.devices.frequency_hz(action.frequency)


def find_policy(config: FleetConfig, system: System) -> Policy | Run:
    """Return the heuristic or the trained run that decides; raises InputError if it does not exist or fit."""
    name = config.policy
    if name in HEURISTICS:
        if config.preference is not None:
            raise InputError(f"--prefer: the heuristic {name} has no preferences; name a trained run with --policy.")
        return HEURISTICS[name]()
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"--policy: {unknown_name('heuristic or trained run', name, HEURISTICS)}")
    run = open_run(folder, build_system=build_system)
    check_fits(run, system)
    run.policy_for(config.weights)  # raises InputError for an invalid preference
    return run
