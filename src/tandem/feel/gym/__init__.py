"""The fleet as a Gymnasium environment, ``tandem/Feel-v0`` once ``tandem`` is imported.

>>> import gymnasium
>>> import tandem
>>> env = gymnasium.make("tandem/Feel-v0", scenario="paper")
>>> fleets = gymnasium.make_vec("tandem/Feel-v0", num_envs=64, scenario="paper")
"""

from tandem.feel.gym.env import FeelEnv
from tandem.feel.gym.vector_env import FeelVectorEnv
from tandem.registration import ENV_ID

__all__ = ["ENV_ID", "FeelEnv", "FeelVectorEnv"]
