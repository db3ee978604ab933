"""One fleet as a Gymnasium environment with a vector reward, and the two compiled functions behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.env import is_truncated, reset, step
from tandem.feel.gym.spaces import action_space, check_action_format, flatten_action, observation_space, reward_space
from tandem.feel.observation import observe
from tandem.feel.shield import action_mask
from tandem.feel.state import Action, FleetState
from tandem.feel.system import System, SystemBuilder, build_system
from tandem.feel.types import Array
from tandem.objectives import NUM_OBJECTIVES
from tandem.scenario import Scenario, load_scenario

Overrides = Sequence[str] | Mapping[str, Any]
EpisodeSeed = UInt32[Array, "2"]
RENDER_MODES = ("ansi",)
MAX_RENDERED_DEVICES = 20


class FeelEnv(gymnasium.Env[NDArray[np.float32], Any]):
    """A fleet of edge devices that each round train or serve, as ``tandem/Feel-v0``.

    ## Description
    An edge server schedules N devices. In every round each device either trains the shared model on the data it has,
    or serves the requests in its queue, and does so at a chosen transmission power and processor frequency. Served
    requests become training data; the accuracy of models decays unless they are trained. The dynamics are the paper's
    (section III). Unless the scenario disables it, a shield replaces an action that a device cannot carry out within
    the constraints by the nearest one that it can.

    ## Observation Space
    A `Box` of float32: feature by feature over the devices, then the length of the last round. The features are those
    of ``tandem.feel.observation``: last action, queue and data (``observation: minimal``), and ages,
    waiting time, model accuracy and last channel gain (``observation: full``). Each has finite bounds, in the unit of
    its name.

    ## Action Space
    With ``action_format="dict"``, a `Dict` of `train` (`MultiBinary(N)`), `power` and `frequency` (`Box(0, 1, (N,))`,
    from the device's lowest to its highest). With ``action_format="box"``, the same as one `Box(0, 1, (3N,))` in that
    order, in which train means above 0.5. ``info["action_mask"]`` has two flags for each device:
    whether it may serve and whether it may train next. If only one is true, the shield replaces the other mode.

    ## Reward Space
    A float32 vector of three, all maximised: mean accuracy of the service, minus mean latency (s), minus mean energy
    (J). The reward of a round that violates a constraint is the scenario's penalty; ``info["objectives"]`` has the
    objectives in any case. ``info`` also has ``violations`` (bool[8], in the order of ``tandem.feel.CONSTRAINTS``),
    ``violating_devices`` (bool[8, N]), ``duration_s`` of the round, and by device the requests ``dropped`` and the
    samples ``discarded``.

    ## Starting State
    Every device has just served through an idle round with the pre-trained model, and has no data yet. Channel and
    arrivals are random: ``reset(seed=...)`` fixes them, and those of the episodes after it.

    ## Episode Truncation
    After the scenario's ``rounds``. An episode is never terminated.

    ## Arguments
    - ``scenario``: a preset's name, a path to a YAML file, or a ``Scenario``; "paper" unless given.
    - ``overrides``: changes to a preset or file, ``["fleet.size=20"]`` or ``{"fleet.size": 20}``.
    - ``action_format``: "dict" or "box".
    - ``render_mode``: None, or "ansi" for a picture of the fleet in text.
    - ``build_system``: builds the system of a scenario; ``gymnasium.make`` passes one that also measures accuracy on a
      scenario's task.

    ## Version History
    - v0: first version.
    """

    metadata = {"render_modes": list(RENDER_MODES), "render_fps": 4}  # noqa: RUF012 - Gymnasium's name and type for it
    reward_dim = NUM_OBJECTIVES

    def __init__(
        self,
        scenario: str | PathLike[str] | Scenario = "paper",
        overrides: Overrides = (),
        action_format: str = "dict",
        render_mode: str | None = None,
        *,
        build_system: SystemBuilder = build_system,
    ) -> None:
        check_action_format(action_format)
        check_render_mode(render_mode)
        self.scenario = open_scenario(scenario, overrides)
        self.system = build_system(self.scenario)
        self.action_format = action_format
        self.render_mode = render_mode
        self.observation_space = observation_space(self.system)
        self.action_space = action_space(self.system, action_format)
        self.reward_space = reward_space(self.system)
        self._state: FleetState | None = None
        self._over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        self._state, result = _reset(self.system, episode_seed(self.np_random))
        self._over = False
        observation, info = to_host(result)
        return observation, info

    def step(self, action: Any) -> tuple[NDArray[np.float32], NDArray[np.float32], bool, bool, dict[str, Any]]:
        if self._state is None or self._over:
            raise gymnasium.error.ResetNeeded("No episode is running; call reset() before step().")
        choices = flatten_action(action, self.action_format, self.system.size)
        self._state, result = _step(self.system, self._state, choices)
        observation, reward, truncated, info = to_host(result)
        self._over = bool(truncated)
        return observation, reward, False, self._over, {**info, "duration_s": float(info["duration_s"])}

    def render(self) -> str | None:
        if self.render_mode is None or self._state is None:
            return None
        return render_ansi(self.system, self._state)


def open_scenario(scenario: str | PathLike[str] | Scenario, overrides: Overrides = ()) -> Scenario:
    """Return the scenario of an environment, loaded if it is a name or a path; raises InputError if it is neither."""
    if isinstance(overrides, str) or not isinstance(overrides, Sequence | Mapping):
        raise InputError(f"overrides is {overrides!r}; write a list such as ['fleet.size=20'], or a mapping.")
    if isinstance(scenario, Scenario):
        if overrides:
            raise InputError(
                "overrides change a preset or a file, and this scenario is loaded already; "
                "give them to load_scenario instead."
            )
        return scenario
    if not isinstance(scenario, str | PathLike):
        raise InputError(
            f"scenario is a {type(scenario).__name__}; give a preset's name, a path to a file, or a Scenario."
        )
    return load_scenario(scenario if isinstance(scenario, str) else Path(scenario), overrides)


def check_render_mode(render_mode: str | None) -> None:
    """Raise InputError unless ``render_mode`` is None or one of ``RENDER_MODES``."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise InputError(f"render_mode is {render_mode!r}; write None or 'ansi'.")


def episode_seed(generator: np.random.Generator) -> NDArray[np.uint32]:
    """Draw the two words of an episode's random key; every episode of an environment has its own."""
    return generator.integers(0, 2**32, size=2, dtype=np.uint32)


def reset_env(system: System, seed: EpisodeSeed) -> tuple[FleetState, Any]:
    """Start an episode. Returns the state and the result for the scheduler: observation and info."""
    # The generator is named, because the words have its shape, whatever JAX's default is.
    state = reset(system, jax.random.wrap_key_data(seed, impl="threefry2x32"))
    return state, (_observation(system, state), {"action_mask": action_mask(system, state)})


def step_env(system: System, state: FleetState, choices: Float[Array, " three_a_device"]) -> tuple[FleetState, Any]:
    """Simulate a round. Returns the state and the result for the scheduler: observation, reward, truncated, info."""
    train, power, frequency = choices.astype(state.queue.dtype).reshape(3, system.size)
    after, outcome = step(system, state, Action(train=train > 0.5, power=power, frequency=frequency))
    info = {
        "action_mask": action_mask(system, after),
        "violations": outcome.violations.by_constraint(),
        "violating_devices": jnp.stack(jax.tree.leaves(outcome.violations)),
        "duration_s": outcome.duration_s,
        "objectives": outcome.objectives.astype(jnp.float32),
        "dropped": outcome.dropped.astype(jnp.float32),
        "discarded": outcome.discarded.astype(jnp.float32),
    }
    return after, (_observation(system, after), outcome.reward.astype(jnp.float32), is_truncated(system, after), info)


# Compiled once for each structure of a system (its static fields and shapes), not for each environment: another
# environment of the same scenario, or of one that differs only in numbers, uses the same compiled functions.
_reset = jax.jit(reset_env)
_step = jax.jit(step_env)


def _observation(system: System, state: FleetState) -> Float[Array, " all"]:
    return observe(system, state).flat().astype(jnp.float32)


def to_host(result: Any) -> Any:
    """Copy arrays to NumPy in one transfer; they must be copies, since wrappers write into the rewards they get."""
    return jax.tree.map(np.array, jax.device_get(result))


def render_ansi(system: System, state: FleetState) -> str:
    """Return the state of the fleet as text, with one line for each device."""
    queue, data, accuracy, train = jax.device_get(
        (state.queue, state.data, state.model_accuracy, state.last_action.train)
    )
    queue_max, data_max = float(system.queue_max), float(system.data_max)
    lines = [
        f"round {int(state.round)} of {system.rounds}, {float(state.clock_s):.1f} s",
        "device  last   queue                data                 model",
    ]
    for device in range(min(system.size, MAX_RENDERED_DEVICES)):
        lines.append(
            f"{device:6d}  {'train' if train[device] else 'serve'}  "
            f"{_bar(queue[device], queue_max)} {queue[device]:7.1f}  "
            f"{_bar(data[device], data_max)} {data[device]:7.1f}  {accuracy[device]:5.3f}"
        )
    if system.size > MAX_RENDERED_DEVICES:
        lines.append(f"and {system.size - MAX_RENDERED_DEVICES} more")
    return "\n".join(lines)


def _bar(value: float, most: float) -> str:
    return ("#" * round(10 * min(value / most, 1.0))).ljust(10, ".")
