"""Play drawn decisions again, one after another, through the environment alone."""

import equinox as eqx
import jax
import numpy as np
from numpy.typing import NDArray

from tandem.feel import System, reset, step
from tandem.feel.types import RandomKey
from tandem.learn.ppo.rollout import Trajectory


def replayed(system: System, played: Trajectory, keys: RandomKey) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rewards and objectives of every round as the environment gives them, [episodes, rounds, 3]."""
    one_step = eqx.filter_jit(step)
    rewards, objectives = [], []
    for episode, key in enumerate(keys):
        state = reset(system, jax.random.split(key)[0])
        decisions = jax.tree.map(lambda leaf, at=episode: leaf[at], played.raw_action)
        for number in range(system.rounds):
            draw = jax.tree.map(lambda leaf, at=number: leaf[at], decisions)
            state, outcome = one_step(system, state, draw.action())
            rewards.append(outcome.reward)
            objectives.append(outcome.objectives)
    shape = (len(keys), system.rounds, 3)
    return np.asarray(rewards, np.float64).reshape(shape), np.asarray(objectives, np.float64).reshape(shape)
