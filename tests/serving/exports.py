"""Export files with networks of strong opinions, the states that they decide on, and the same decisions by JAX."""

import dataclasses
from dataclasses import dataclass
from functools import cache
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tandem.feel import Action, Environment, FleetState, System, build_system
from tandem.feel.shield import project
from tandem.policy.features import Features, extract_features
from tandem.policy.networks import DeepSetActorCritic, MLPActorCritic, RandomModeActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser
from tandem.runs.front import Front, PolicyRecord
from tandem.runs.run import SavedPolicies
from tandem.scenario import Scenario, load_scenario
from tandem.serving import FleetReport, PolicyFile
from tandem.serving.export import export_policies
from tandem.serving.reports import report_from_state

# Devices that can train before their buffers overflow, so that the shield has a timetable.
KEEPING = {
    "limits.overflow": "violation",
    "limits.data_max": 400,
    "training.iterations": 1,
    "fleet.defaults.distance_m": {"uniform": [400, 800]},
}
SYSTEMS: dict[str, dict[str, Any]] = {
    "paper": {},
    "discard": {"limits.overflow": "discard"},
    "timetable": KEEPING,
    # An inference may outlast the training.
    "no slot": {"limits.round_floor_s": 0, "limits.overflow": "discard"},
    "unshielded": {"shield.enabled": False},
    "minimal": {"observation": "minimal"},
}


@cache
def scenario_of(kind: str, size: int) -> Scenario:
    changes = {**SYSTEMS[kind], "fleet.size": size}
    if kind == "timetable" and size > 20:  # smaller updates, so that the uplink has room for all
        changes["training.update_bits"] = load_scenario("paper").training.update_bits * 20 / size
    return load_scenario("paper", changes)


@cache
def system_of(kind: str, size: int) -> System:
    return build_system(scenario_of(kind, size))


@dataclass(frozen=True)
class Case:
    """A policy in JAX, its export, and its system."""

    system: System
    policy: NeuralPolicy
    file: PolicyFile


def network_of(kind: str, environment: Environment, key: jax.Array) -> Any:
    """A network with opinions: a fresh one is nearly indifferent, and serves everywhere or trains everywhere."""
    networks = {
        "conditioned": lambda: DeepSetActorCritic.init(environment, key, conditioned=True, width=16),
        "deep-set": lambda: DeepSetActorCritic.init(environment, key, width=16),
        "mlp": lambda: MLPActorCritic.init(environment, key),
        "random modes": lambda: RandomModeActorCritic.init(environment, key),
    }
    network = networks[kind]()
    arrays, rest = eqx.partition(network, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(arrays)
    keys = jax.random.split(key, len(leaves))
    # About 1 / sqrt(inputs), also in the last layer: a larger scale would amplify rounding from layer to layer.
    scales = [leaf.shape[-1] ** -0.5 if leaf.ndim > 1 else 0.3 for leaf in leaves]
    noise = [scale * jax.random.normal(one, leaf.shape) for scale, one, leaf in zip(scales, keys, leaves, strict=True)]
    louder = [leaf + add for leaf, add in zip(leaves, noise, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, louder), rest)


def make_case(system_kind: str, size: int, network_kind: str, largest_fleet: int | None = None, seed: int = 0) -> Case:
    scenario, system = scenario_of(system_kind, size), system_of(system_kind, size)
    environment, key = Environment(system), jax.random.key(seed)
    network = network_of(network_kind, environment, key)
    seen = features_of(environment, random_states(system, 50, seed + 1))
    normaliser = ObservationNormaliser.init(jax.tree.map(lambda leaf: leaf[0], seen)).update(seen)
    preference = (0.5, 0.2, 0.3)
    sampling = "sample-modes" if network_kind == "random modes" else "deterministic"
    policy = NeuralPolicy(network, normaliser, jnp.asarray(preference), sampling, largest_fleet)
    one = PolicyRecord(
        0, (0.5, 3.0, 10.0), (None,) * 3, (0.5, -3.0, -10.0), 0.0, (0.0,) * 8, None, preference, "", None, 0
    )
    file = export_policies(
        scenario,
        system,
        jax.tree.map(lambda leaf: leaf[None] if eqx.is_array(leaf) else leaf, SavedPolicies(network, normaliser)),
        Front((one,), (0.0, 8.0, 50.0), 0.01),
        sampling=sampling,
        largest_fleet=largest_fleet,
        origin={"algorithm": "none"},
        source="test",
    )
    return Case(system, policy, file)


@eqx.filter_jit
def features_of(environment: Environment, states: FleetState) -> Features:
    return jax.vmap(lambda state: extract_features(environment, state))(states)


def random_states(system: System, count: int, seed: int) -> FleetState:
    """States that no policy may reach: empty and full queues and buffers, any action before, any round."""
    rng = np.random.default_rng(seed)
    shape = (count, system.size)
    # Each state has its own share of devices without data and of full queues, so that few or all may train.
    idle, busy, fill = (rng.random((count, 1)) for _ in range(3))
    queue = float(system.queue_max) * rng.random(shape) ** 2 * np.where(rng.random(shape) < busy, 1.0, 0.2)
    queue *= rng.random(shape) > 0.1
    # In every second state each device can serve its queue within the slot, as in states that the shield keeps.
    queue[::2] = np.minimum(queue[::2], np.asarray(system.worst_case.queue_limit))
    data = float(system.data_max) * rng.random(shape) * fill * (rng.random(shape) > 0.7 * idle)

    def single(values: Any) -> jax.Array:
        return jnp.asarray(np.asarray(values), jnp.float32)

    train = rng.random(shape) < 0.3
    return FleetState(
        key=jax.random.split(jax.random.key(seed), count),
        round=jnp.asarray(rng.integers(0, 10_000, count), jnp.int32),
        clock_s=single(rng.random(count) * 1e4),
        queue=single(queue),
        waited_s=single(queue * rng.random(shape) * 10),
        data=single(data),
        data_age_s=single(1 + 20 * rng.random(shape)),
        model_age_s=single(200 * rng.random(shape)),
        model_accuracy=single(rng.random(shape)),
        last_action=Action(jnp.asarray(train), single(rng.random(shape) * train), single(rng.random(shape))),
        last_duration_s=single(rng.uniform(0, float(system.round_max_s), count)),
        last_gain=single(np.asarray(system.worst_case.worst_gain) * 10 ** rng.uniform(0, 2, shape)),
    )


class Decided(eqx.Module):
    """What JAX decides in each state: the network's action after the shield, and a random action after it."""

    action: Action
    random: Action
    projected: Action
    power_w: jax.Array
    frequency_hz: jax.Array


@eqx.filter_jit
def decide_by_jax(system: System, policy: NeuralPolicy, states: FleetState, key: jax.Array) -> Decided:
    environment = Environment(system)

    def shielded(state: FleetState, action: Action) -> Action:
        if system.shielded:
            return project(system, state, action)
        return dataclasses.replace(action, train=action.train & (state.data > 0))

    def one(state: FleetState, key: jax.Array) -> Decided:
        action = shielded(state, policy(environment, state, key))
        mode_key, power_key, frequency_key, eager_key = jax.random.split(key, 4)
        shape = state.queue.shape
        asked = Action(
            jax.random.uniform(mode_key, shape) < jax.random.uniform(eager_key),
            jax.random.uniform(power_key, shape),
            jax.random.uniform(frequency_key, shape),
        )
        devices = system.devices
        return Decided(
            action,
            asked,
            shielded(state, asked),
            devices.power_w(action.power),
            devices.frequency_hz(action.frequency),
        )

    return jax.vmap(one)(states, keys_of(key, states))


def keys_of(key: jax.Array, states: FleetState) -> jax.Array:
    return jax.random.split(key, states.round.shape[0])


def report_of(file: PolicyFile, system: System, state: FleetState) -> FleetReport:
    """A state as the devices would report it, in watts and hertz."""
    return report_from_state(file.device_names, system, state)


def make_report(
    file: PolicyFile, names: tuple[str, ...] | None = None, seed: int = 0, **columns: object
) -> FleetReport:
    """A plausible report; columns depend on the device's name alone, not on the other devices."""
    names = file.device_names if names is None else names

    def draw(field: str, low: float, high: float) -> np.ndarray:
        tokens = [np.random.default_rng([seed, *name.encode(), *field.encode()]) for name in names]
        return np.array([low + (high - low) * rng.random() for rng in tokens])

    values: dict[str, object] = {
        "queue": draw("queue", 0, 40),
        "data": draw("data", 0, 120),
        "last_train": draw("last_train", 0, 1) < 0.3,
        "last_power_w": draw("last_power_w", 0.1, 1.0),
        "last_frequency_hz": draw("last_frequency_hz", 1e9, 3.5e9),
        "waited_s": draw("waited_s", 0, 100),
        "data_age_s": draw("data_age_s", 1, 20),
        "model_age_s": draw("model_age_s", 0, 100),
        "model_accuracy": draw("model_accuracy", 0.2, 0.9),
        "last_gain": draw("last_gain", 1, 100),
    }
    given = {"names": names, "round": 3, "last_duration_s": 2.5, **values, **columns}
    return FleetReport(**given)  # type: ignore[arg-type]
