"""How policies come to be: proximal policy optimisation with a vector critic, and the algorithms built on it."""

from tandem.learn.algorithm import Algorithm, Candidates, Seen, Stage
from tandem.learn.config import Options
from tandem.learn.ppo.gae import advantages
from tandem.learn.ppo.ppo import Learner, Report, Settings, start, train_step
from tandem.learn.ppo.surrogate import Aim, Constrained, Weighted
from tandem.learn.registry import ALGORITHMS
from tandem.learn.train_loop import Checkpoint, Progress, begin, conclude, train
from tandem.learn.validation import Delivery, deliver

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
