"""Repeat the actions of a trajectory one after another, through the environment alone."""

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from tandem.feel import System, reset, step
from tandem.feel.types import RandomKey
from tandem.learn.ppo.rollout import Trajectory


def replay(system: System, trajectory: Trajectory, keys: RandomKey) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return rewards and objectives of every round as the environment gives them, [episodes, rounds, 3]."""
    one_reset, one_step = eqx.filter_jit(reset), eqx.filter_jit(step)
    actions = jax.device_get(jax.vmap(jax.vmap(lambda raw_action: raw_action.action()))(trajectory.raw_action))
    rewards, objectives = [], []
    for episode, key in enumerate(keys):
        state = one_reset(system, jax.random.split(key)[0])
        for number in range(system.rounds):
            action = jax.tree.map(lambda leaf, at=(episode, number): leaf[at], actions)
            state, outcome = one_step(system, state, action)
            rewards.append(outcome.reward)
            objectives.append(outcome.objectives)
    shape = (len(keys), system.rounds, 3)
    return np.asarray(rewards, np.float64).reshape(shape), np.asarray(objectives, np.float64).reshape(shape)
