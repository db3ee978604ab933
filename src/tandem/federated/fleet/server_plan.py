"""The server of a fleet, as a state machine, first half: what it knows, and how it plans a round.

The server believes of each device what it last reported. A plan is the simulator's round from that belief: who trains,
how fast, and how long the round lasts. A device that was not heard in the last round is told to serve until it is, so
that it holds up nobody.
"""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tandem.federated.algorithm import AlgorithmState, Model
from tandem.federated.fleet.messages import Instruction
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel.env import reset, step
from tandem.feel.state import FleetState, RoundOutcome
from tandem.feel.system import System
from tandem.feel.types import DeviceFlags, RandomKey
from tandem.io.tree_io import flatten_arrays
from tandem.policy.base import Policy

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class ServerState:
    """The server between two rounds."""

    run: str
    estimate: FleetState  # as the devices reported it
    accuracy: NDArray[np.float32]  # of each device's answers, as last reported
    model: Model  # w, the global model
    algorithm_state: AlgorithmState  # what the federated algorithm keeps; None for FedAvg
    acknowledged: Numbers  # for each device, the last round whose update is in the model; -1 is none
    settled: Numbers  # the last acknowledgement each device is known to have acted on
    heard: Flags  # whether each device's last report was usable


@dataclasses.dataclass(frozen=True)
class RoundPlan:
    """A round that has been decided, not played."""

    round: int
    instructions: tuple[Instruction, ...]
    expected: FleetState  # after it, if all goes as it should
    outcome: RoundOutcome


def init_server(problem: FleetSpec, run: str) -> ServerState:
    """Before round 0: every device is believed to be there, with the pre-trained model and an idle round's requests."""
    size = problem.system.size
    none = np.full(size, -1)
    accuracy = np.full(size, float(problem.task.accuracy), np.float32)
    belief = reset(problem.system, problem.fleet_key)
    model = problem.task.model
    algorithm_state = problem.task.algorithm.init(model)
    return ServerState(run, belief, accuracy, model, algorithm_state, none, none, np.ones(size, bool))


def plan_round(problem: FleetSpec, policy: Policy, server: ServerState) -> RoundPlan:
    """Decide for every device."""
    expected, outcome = _decided(problem.system, policy, server.estimate, jnp.asarray(server.heard), problem.policy_key)
    train = np.asarray(outcome.executed.train)
    weights = flatten_arrays(server.model)
    number = int(server.estimate.round)
    instructions = tuple(
        Instruction(
            run=server.run,
            device=n,
            round=number,
            fingerprint=problem.fingerprint,
            weights=weights if train[n] or server.acknowledged[n] > server.settled[n] else None,
            train=bool(train[n]),
            power_w=float(outcome.power_w[n]),
            frequency_hz=float(outcome.frequency_hz[n]),
            trainers=int(train.sum()),
            clock_s=float(server.estimate.clock_s),
            duration_s=float(outcome.duration_s),
            acknowledged=int(server.acknowledged[n]),
        )
        for n in range(problem.system.size)
    )
    return RoundPlan(number, instructions, expected, outcome)


@eqx.filter_jit
def _decided(
    system: System, policy: Policy, belief: FleetState, heard: DeviceFlags, key: RandomKey
) -> tuple[FleetState, RoundOutcome]:
    action = policy(system, belief, jax.random.fold_in(key, belief.round))
    return step(system, belief, dataclasses.replace(action, train=action.train & heard))
