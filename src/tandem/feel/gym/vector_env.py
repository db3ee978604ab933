"""Many fleets as one Gymnasium vector environment: a step of all fleets is one compiled call."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from tandem.errors import InputError
from tandem.feel.gym.env import (
    RENDER_MODES,
    Overrides,
    check_render_mode,
    episode_seed,
    open_scenario,
    render_ansi,
    reset_env,
    step_env,
    to_host,
)
from tandem.feel.gym.spaces import action_space, check_action_format, flatten_action, observation_space, reward_space
from tandem.feel.state import FleetState
from tandem.feel.system import SystemBuilder, build_system
from tandem.objectives import NUM_OBJECTIVES
from tandem.scenario import Scenario

AUTORESET_MODES = (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP)


class FeelVectorEnv(gymnasium.vector.VectorEnv[NDArray[np.float32], Any, NDArray[Any]]):
    """``num_envs`` fleets of one scenario, as ``gymnasium.make_vec("tandem/Feel-v0", ...)``.

    Spaces, reward and arguments are those of ``FeelEnv``, with an axis of fleets in front. As in Gymnasium's own
    vector environments, ``reset(seed=s)`` seeds fleet i with s + i (or with s[i]), and every key of ``info`` comes
    with a mask ``_key``. Fleet i has the same episodes as a ``FeelEnv`` seeded with s + i.

    Fleets start together and all episodes last T rounds, so they also end together. In the autoreset mode
    ``SAME_STEP`` that step returns the next episode's first observation, and the last one of the old episode in
    ``info["final_obs"]`` with its ``info["final_info"]``. In ``NEXT_STEP`` the step after it ignores its actions,
    starts the new episode and has a reward of zero; MO-Gymnasium's vector ``MORecordEpisodeStatistics`` is correct in
    this mode only.

    ## Arguments
    - ``num_envs``: the number of fleets.
    - ``autoreset_mode``: ``AutoresetMode.SAME_STEP`` (the default) or ``NEXT_STEP``, or their values as text.
    - all others: see ``FeelEnv``.
    """

    metadata = {  # noqa: RUF012 - Gymnasium's name and type for it
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    reward_dim = NUM_OBJECTIVES

    def __init__(
        self,
        num_envs: int = 1,
        scenario: str | PathLike[str] | Scenario = "paper",
        overrides: Overrides = (),
        action_format: str = "dict",
        render_mode: str | None = None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        *,
        build_system: SystemBuilder = build_system,
    ) -> None:
        if not isinstance(num_envs, int | np.integer) or isinstance(num_envs, bool) or num_envs < 1:
            raise InputError(f"num_envs is {num_envs!r}; give the number of fleets, 1 or more.")
        check_action_format(action_format)
        check_render_mode(render_mode)
        self.num_envs = int(num_envs)
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.scenario = open_scenario(scenario, overrides)
        self.system = build_system(self.scenario)
        self.action_format = action_format
        self.render_mode = render_mode
        self.single_observation_space = observation_space(self.system)
        self.single_action_space = action_space(self.system, action_format)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        # Of one fleet, as in MO-Gymnasium's vector environments; its wrappers read the number of objectives from it.
        self.reward_space = reward_space(self.system)
        self._generators: list[np.random.Generator] = []
        self._states: FleetState | None = None
        self._restart_due = False

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        if options and "reset_mask" in options:
            raise InputError("options has a reset_mask; leave it out, since all fleets start and end together.")
        self._seed(seed)
        return self._restart()

    def step(
        self, actions: Any
    ) -> tuple[NDArray[np.float32], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        if self._states is None:
            raise gymnasium.error.ResetNeeded("No episode is running; call reset() before step().")
        nothing = np.zeros(self.num_envs, np.bool_)
        if self._restart_due:
            observation, info = self._restart()
            return observation, np.zeros((self.num_envs, self.reward_dim), np.float32), nothing, nothing.copy(), info
        choices = flatten_action(actions, self.action_format, self.system.size, (self.num_envs,))
        self._states, result = _step_all(self.system, self._states, choices)
        observation, reward, truncated, info = to_host(result)
        info = self._with_masks(info)
        if truncated.any():
            if self.autoreset_mode == AutoresetMode.SAME_STEP:
                # An object array with one observation per fleet, as in Gymnasium's own vector environments.
                final_obs = np.empty(self.num_envs, object)
                final_obs[:] = list(observation)
                final = self._with_masks({"final_obs": final_obs, "final_info": info})
                observation, start = self._restart()
                info = {**final, **start}
            else:
                self._restart_due = True
        return observation, reward, nothing, truncated, info

    def render(self) -> tuple[str, ...] | None:
        if self.render_mode is None or self._states is None:
            return None
        states = self._states
        return tuple(
            render_ansi(self.system, jax.tree.map(lambda leaf, fleet=fleet: leaf[fleet], states))
            for fleet in range(self.num_envs)
        )

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        if seed is None:
            # Without a seed the generators continue; before the first reset there are none.
            self._generators = self._generators or self.np_random.spawn(self.num_envs)
            return
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            self._generators = [seeding.np_random(int(seed) + fleet)[0] for fleet in range(self.num_envs)]
            return
        if len(seed) != self.num_envs:
            raise InputError(
                f"seed has {len(seed)} entries; give one number, or one for each of {self.num_envs} fleets."
            )
        current = self._generators or self.np_random.spawn(self.num_envs)
        self._generators = [
            old if one is None else seeding.np_random(int(one))[0] for old, one in zip(current, seed, strict=True)
        ]

    def _restart(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        seeds = np.stack([episode_seed(generator) for generator in self._generators])
        self._states, result = _reset_all(self.system, seeds)
        self._restart_due = False
        observation, info = to_host(result)
        return observation, self._with_masks(info)

    def _with_masks(self, info: dict[str, Any]) -> dict[str, Any]:
        """Add a mask to each key: all fleets have the key, since they are always in the same round."""
        return info | {f"_{key}": np.ones(self.num_envs, np.bool_) for key in info}


# One compiled program for all fleets of a scenario, by vmap of ``reset_env`` and ``step_env``.
_reset_all = jax.jit(jax.vmap(reset_env, in_axes=(None, 0)))
_step_all = jax.jit(jax.vmap(step_env, in_axes=(None, 0, 0)))


def _autoreset_mode(mode: AutoresetMode | str) -> AutoresetMode:
    try:
        known = AutoresetMode(mode)
    except ValueError:
        known = None
    if known not in AUTORESET_MODES:
        raise InputError(f"autoreset_mode is {mode!r}; write AutoresetMode.SAME_STEP or AutoresetMode.NEXT_STEP.")
    return known
