"""Hyperparameters of PPO for tests."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from tandem.learn.config import AlgorithmConfig, PPOConfig

# Common values, where the defaults of the algorithms are tuned to the paper's fleet.
COMMON: dict[str, Any] = {
    "learning_rate": 1e-3,
    "anneal_lr": False,
    "clip_eps": 0.2,
    "ent_coef": 1e-3,
    "shared_credit": 1.0,
    "num_envs": 8,
}


def make_ppo_config(**changes: Any) -> PPOConfig:
    """Make hyperparameters with some fields changed. Numbers are arrays, so that other values need no compilation."""
    config = replace(AlgorithmConfig(**COMMON).ppo_config(steps=1), **changes)
    return jax.tree.map(lambda value: jnp.asarray(value, float), config)
