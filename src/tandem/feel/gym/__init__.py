"""The fleet as a Gymnasium environment. Importing this package registers ``tandem/Feel-v0``.

>>> import gymnasium
>>> import tandem.feel.gym
>>> env = gymnasium.make("tandem/Feel-v0", scenario="paper")
>>> fleets = gymnasium.make_vec("tandem/Feel-v0", num_envs=64, scenario="paper")
"""

import gymnasium

from tandem.feel.gym.single import FeelEnv
from tandem.feel.gym.vector import FeelVectorEnv

__all__ = ["ENV_ID", "FeelEnv", "FeelVectorEnv", "register"]

ENV_ID = "tandem/Feel-v0"


def register() -> None:
    """Make ``gymnasium.make`` know the environment; calling it again changes nothing."""
    if ENV_ID in gymnasium.registry:
        return
    gymnasium.register(
        id=ENV_ID,
        entry_point="tandem.feel.gym.single:FeelEnv",
        vector_entry_point="tandem.feel.gym.vector:FeelVectorEnv",
        # The checker that make() would wrap around knows scalar rewards only; MO-Gymnasium leaves it out as well.
        disable_env_checker=True,
    )


register()
