"""Simulated episodes for the views of policies and fleets, and the evaluation of a preference."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandem.feel.environment import Environment
from tandem.feel.state import Action, FleetState
from tandem.objectives import OBJECTIVE_KEYS, to_user_units
from tandem.policy.neural_policy import NeuralPolicy
from tandem.policy.rollout import rollout, rollout_means
from tandem.rng import EVALUATION_SEED_START
from tandem.runs.front import measured_fields
from tandem.runs.run import Run
from tandem.runs.simulation import episode_keys
from tandem.runs.trace import trace_table
from tandem.scenario import Scenario, build_device_table
from tandem.studio.library import plain

SEEDS = 8  # episodes of a preference that is evaluated on the spot
QUANTILES = 101
NOTICEABLE = 0.01  # smaller changes of power and frequency, as shares of their ranges, are rounding
EPISODE_COLUMNS = (
    *("queue", "data", "data_age_s", "model_age_s", "power_w", "frequency_hz"),
    *("accuracy", "latency_s", "energy_j", "served"),
)


def evaluate_preference(run: Run, preference: Sequence[float]) -> dict[str, Any]:
    """Simulate the run's network with exactly this preference, on new seeds."""
    start_s = time.perf_counter()
    seeds = range(EVALUATION_SEED_START, EVALUATION_SEED_START + SEEDS)
    means = rollout_means(Environment(run.system()), run.policy_for(preference), episode_keys(seeds))
    fields = measured_fields(jax.device_get(means))
    return {
        "objectives": list(fields["objectives"]),
        "half_width": list(fields["half_width"]),
        "violation_rate": fields["violation_rate"],
        "seeds": SEEDS,
        "wall_s": time.perf_counter() - start_s,
    }


def simulate_episode(run: Run, policy: NeuralPolicy, title: str, seed: int) -> dict[str, Any]:
    """Simulate one episode of a policy, with every round and what the shield changed in it."""
    environment = Environment(run.system())
    keys = episode_keys([seed])
    states, outcomes = rollout(environment, policy, keys)
    wanted = _proposed_actions(environment, policy, states, keys)
    states = eqx.tree_at(lambda state: state.key, states, jax.random.key_data(states.key))
    state, outcome, proposed = jax.device_get(jax.tree.map(lambda leaf: leaf[0], (states, outcomes, wanted)))
    names = [str(name) for name in build_device_table(run.scenario).names]
    table = trace_table(seed, names, state, outcome)
    columns = {name: table[name].reshape(-1, len(names)) for name in EPISODE_COLUMNS}
    violated = table["violated"].reshape(-1, len(names))
    served = columns["latency_s"][columns["served"] > 0]
    shares = np.linspace(0, 1, QUANTILES)
    none = [[None] * environment.size] * environment.rounds
    return {
        "live": False,
        "title": f"{title}, seed {seed}",
        "devices": names,
        "numbers": np.asarray(state.round).tolist(),
        "duration_s": _rounded(outcome.duration_s),
        "time_s": _rounded(state.clock_s),
        "limits": limits_document(run.scenario),
        "train": np.asarray(outcome.executed.train).tolist(),
        **{name: _rounded(column) for name, column in columns.items()},
        "changed": _describe_changes(proposed, outcome.executed) if environment.system.shielded else none,
        "violated": violated.tolist(),
        "means": {name: _rounded(columns[name].mean(axis=1)) for name in OBJECTIVE_KEYS},
        "latency_quantiles": {"share": shares.tolist(), "latency_s": np.quantile(served, shares).tolist()}
        if served.size
        else None,
        "objectives": to_user_units(outcome.objectives.mean(axis=0)).tolist(),
        "violation_rate": float((violated != "").any(axis=1).mean()),
    }


@eqx.filter_jit
def _proposed_actions(environment: Environment, policy: NeuralPolicy, states: FleetState, keys: Any) -> Action:
    """Return the actions of the policy in given states, [episodes, rounds], before the shield changes them."""

    def one_episode(key: Any, history: FleetState) -> Action:
        _, policy_key = jax.random.split(key)  # as in a rollout
        return jax.vmap(lambda state: policy(environment, state, jax.random.fold_in(policy_key, state.round)))(history)

    return jax.vmap(one_episode)(keys, states)


def _describe_changes(proposed: Action, executed: Action) -> list[list[str | None]]:
    """Return what the shield changed for each round and device as a sentence, or None."""
    changes = np.full(np.shape(executed.train), None, dtype=object)
    for name in ("power", "frequency"):
        before, after = getattr(proposed, name), getattr(executed, name)
        for place in zip(*np.nonzero(np.abs(after - before) > NOTICEABLE), strict=True):
            verb = "raised" if after[place] > before[place] else "lowered"
            said = f"{name} {verb} from {before[place]:.0%} to {after[place]:.0%} of its range"
            changes[place] = f"{changes[place]}; {said}" if changes[place] else said
    for place in zip(*np.nonzero(proposed.train != executed.train), strict=True):
        train = bool(executed.train[place])
        changes[place] = "told to train instead of serving" if train else "told to serve instead of training"
    sentences: list[list[str | None]] = changes.tolist()
    return sentences


def limits_document(scenario: Scenario) -> dict[str, float | None]:
    """Return the limits that queues, buffers and rounds are shown against."""
    table = build_device_table(scenario)
    return {
        "queue_max": float(scenario.limits.queue_max),
        "data_max": float(scenario.limits.data_max),
        "round_max_s": float(scenario.limits.round_max_s),
        "power_max_w": float(np.max(table.power_max_w)),
        "frequency_max_hz": float(np.max(table.frequency_max_hz)),
    }


def _rounded(values: ArrayLike) -> list[Any]:
    """Return numbers with six significant digits, which is what single precision has, for short answers."""
    array: NDArray[np.float64] = np.asarray(values, np.float64)
    flat = [None if value is None else float(f"{value:.6g}") for value in plain(array.reshape(-1))]
    nested: list[Any] = np.array(flat, dtype=object).reshape(array.shape).tolist()
    return nested
