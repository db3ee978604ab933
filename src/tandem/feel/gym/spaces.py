"""The observation, action and reward spaces of the environment, with finite bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.observation import FLEET_FEATURES, device_features
from tandem.feel.queues import FRESH_AGE_S
from tandem.feel.system import System

ACTION_PARTS = ("train", "power", "frequency")
ACTION_FORMATS = ("dict", "box")

# Single precision rounds, so a value at its bound may exceed it by a rounding error.
ROUNDING = 1e-3
# The weakest gain of an observation, and the strongest that single precision can represent, in dB.
GAIN_DB = (-300.0, 386.0)


def observation_space(system: System) -> gymnasium.spaces.Box[np.float32]:
    """Return the space of the flat observation: each feature over all devices, then those of the fleet."""
    bounds = _feature_bounds(system)
    names = [name for name in device_features(system) for _ in range(system.size)] + list(FLEET_FEATURES)
    low, high = np.array([bounds[name] for name in names]).T
    return _box(low, high)


def action_space(system: System, action_format: str) -> gymnasium.Space[Any]:
    """Return the action space: train, power and frequency by name (``dict``), or in one vector (``box``).

    In the vector, a train value above 0.5 means that the device trains.
    """
    size = system.size
    if action_format == "box":
        return gymnasium.spaces.Box(0.0, 1.0, (len(ACTION_PARTS) * size,), np.float32)
    return gymnasium.spaces.Dict(
        train=gymnasium.spaces.MultiBinary(size),
        power=gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32),
        frequency=gymnasium.spaces.Box(0.0, 1.0, (size,), np.float32),
    )


def reward_space(system: System) -> gymnasium.spaces.Box[np.float32]:
    """Return the reward space: (accuracy, -latency in s, -energy in J), or the penalty."""
    devices, longest_s, most_requests = system.devices, _number(system.round_max_s), _number(system.queue_max)
    cycles = _numbers(devices.inference_cycles_per_request) * most_requests
    frequency_hz = _numbers(devices.frequency_max_hz)
    latency_s = _feature_bounds(system)["waiting_s"][1] + cycles / _numbers(devices.frequency_min_hz)
    # A device that trains computes for at most one round; a device that serves computes until its queue is empty.
    computing_j = _numbers(devices.capacitance) * frequency_hz**2 * np.maximum(frequency_hz * longest_s, cycles)
    energy_j = computing_j + _numbers(devices.power_max_w) * longest_s + _numbers(devices.switch_energy_j)
    worst = np.array([0.0, -np.mean(latency_s), -np.mean(energy_j)]) * (1 + ROUNDING)
    penalty = _numbers(system.penalty)
    return _box(np.minimum(worst, penalty), np.maximum([1.0, 0.0, 0.0], penalty))


def check_action_format(action_format: str) -> None:
    """Raise InputError unless ``action_format`` is one of ``ACTION_FORMATS``."""
    if action_format not in ACTION_FORMATS:
        raise InputError(f"action_format is {action_format!r}; write 'dict' or 'box'.")


def flatten_action(action: Any, action_format: str, size: int, batch: tuple[int, ...] = ()) -> NDArray[np.float32]:
    """Convert an action of either format to one vector per fleet: train, then power, then frequency of all devices."""
    if action_format == "box":
        return _part(action, "the action", (*batch, len(ACTION_PARTS) * size))
    if not isinstance(action, Mapping) or set(action) != set(ACTION_PARTS):
        given = f"the keys {sorted(map(str, action))}" if isinstance(action, Mapping) else f"a {type(action).__name__}"
        raise InputError(
            f"the action is {given}; give a dict of 'train', 'power' and 'frequency', "
            "or make the environment with action_format='box' to give one vector."
        )
    return np.concatenate([_part(action[name], f"action[{name!r}]", (*batch, size)) for name in ACTION_PARTS], axis=-1)


def _part(value: Any, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        raise InputError(f"{name} is not an array of numbers; give one of shape {shape}.") from None
    if array.shape != shape:
        raise InputError(f"{name} has shape {array.shape}; give an array of shape {shape}.")
    return array


def _feature_bounds(system: System) -> dict[str, tuple[float, float]]:
    """Return the lowest and highest value of each feature in an episode of T rounds, none longer than L_max."""
    longest_s = _number(system.round_max_s)
    # Quantities that accumulate over rounds also accumulate the rounding errors.
    rounding = 1 + ROUNDING + system.rounds * float(np.finfo(np.float32).eps)
    episode_s = system.rounds * longest_s * rounding
    return {
        "last_train": (0.0, 1.0),
        "last_power": (0.0, 1.0),
        "last_frequency": (0.0, 1.0),
        "queue": (0.0, _number(system.queue_max) * rounding),
        "data": (0.0, _number(system.data_max) * rounding),
        "data_age_s": (0.0, FRESH_AGE_S + episode_s),
        "model_age_s": (0.0, episode_s),
        # The first requests have waited through the idle round before the episode.
        "waiting_s": (0.0, episode_s + longest_s),
        "model_accuracy": (0.0, 1.0),
        "last_gain_db": GAIN_DB,
        "last_duration_s": (0.0, longest_s * rounding),
    }


def _box(low: NDArray[np.float64], high: NDArray[np.float64]) -> gymnasium.spaces.Box[np.float32]:
    return gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)


def _number(value: Any) -> float:
    return float(np.asarray(value, np.float64))


def _numbers(values: Any) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)
