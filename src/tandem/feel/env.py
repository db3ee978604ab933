"""The functional environment: ``reset`` and ``step`` as pure functions, for vmap and scan.

>>> from tandem.scenario import load_scenario
>>> import jax
>>> system = build_system(load_scenario("paper"))
>>> state = reset(system, jax.random.key(0))
>>> state, outcome = step(system, state, serve_all(system))
>>> int(state.round), bool(outcome.violations.any())
(1, False)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tandem.feel.dynamics import advance
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.state import Action, FleetState, RoundOutcome
from tandem.feel.system import System, build_system
from tandem.feel.types import Flag, RandomKey
from tandem.rng import FleetStream, fold_stream

__all__ = ["build_system", "is_truncated", "reset", "serve_all", "step"]


def reset(system: System, key: RandomKey) -> FleetState:
    """Return the state of round 0: each device has served one idle round with the pre-trained model and has no data."""
    start_key, episode_key = jax.random.split(key)
    gain_key, arrival_key = jax.random.split(start_key)
    idle_s = system.idle_round_s
    zero = jnp.zeros_like(system.devices.power_max_w)
    clock_s = jnp.zeros_like(idle_s)
    queue = jnp.minimum(system.arrivals.sample(clock_s, idle_s, arrival_key), system.queue_max)
    return FleetState(
        key=episode_key,
        round=jnp.zeros((), jnp.int32),
        clock_s=clock_s,
        queue=queue,
        waited_s=queue * idle_s,
        data=zero,
        data_age_s=zero + FRESH_AGE_S,
        model_age_s=zero,
        model_accuracy=zero + system.pretrained_accuracy,
        last_action=Action(train=jnp.zeros(zero.shape, bool), power=zero, frequency=zero),
        last_duration_s=idle_s,
        last_gain=system.channel.gain(clock_s, gain_key),
        measured=None
        if system.measured_accuracy is None
        else system.measured_accuracy.init(queue, idle_s, fold_stream(key, FleetStream.MEASURED_ACCURACY)),
    )


def step(system: System, state: FleetState, action: Action) -> tuple[FleetState, RoundOutcome]:
    """Simulate one round. The channel and the arrivals depend on the episode's key and the number of the round."""
    gain_key, arrival_key = jax.random.split(jax.random.fold_in(state.key, state.round))
    gain = system.channel.gain(state.clock_s, gain_key)
    return advance(system, state, action, gain, arrival_key)


def is_truncated(system: System, state: FleetState) -> Flag:
    """Return whether the episode is over: it is truncated after T rounds, and never terminated."""
    return state.round >= system.rounds


def serve_all(system: System) -> Action:
    """Return the action in which every device serves at its lowest power and highest frequency."""
    zero = jnp.zeros_like(system.devices.power_max_w)
    return Action(train=jnp.zeros(zero.shape, bool), power=zero, frequency=zero + 1)
