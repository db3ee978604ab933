"""How policies come to be: proximal policy optimisation with a vector critic, and the algorithms built on it."""

from tandem.learn.aims import Aim, Constrained, Weighted
from tandem.learn.algorithm import Algorithm, Candidates, Seen, Stage
from tandem.learn.delivery import Delivery, deliver
from tandem.learn.gae import advantages
from tandem.learn.options import Options
from tandem.learn.ppo import Learner, Report, Settings, start, train_step
from tandem.learn.registry import ALGORITHMS
from tandem.learn.training import Checkpoint, Progress, begin, conclude, train

__all__ = [
    "ALGORITHMS",
    "Aim",
    "Algorithm",
    "Candidates",
    "Checkpoint",
    "Constrained",
    "Delivery",
    "Learner",
    "Options",
    "Progress",
    "Report",
    "Seen",
    "Settings",
    "Stage",
    "Weighted",
    "advantages",
    "begin",
    "conclude",
    "deliver",
    "start",
    "train",
    "train_step",
]
