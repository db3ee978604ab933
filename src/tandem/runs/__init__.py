"""What remains of a run: simulations, their figures and traces."""

from tandem.runs.rollout import EpisodeMeans, episodes, mean_outcome
from tandem.runs.simulation import Simulation, simulate

__all__ = ["EpisodeMeans", "Simulation", "episodes", "mean_outcome", "simulate"]
