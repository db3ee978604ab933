"""How policies come to be: proximal policy optimisation with a vector critic."""

from tandem.learn.gae import advantages
from tandem.learn.ppo import Learner, Report, Settings, start, train_step

__all__ = ["Learner", "Report", "Settings", "advantages", "start", "train_step"]
