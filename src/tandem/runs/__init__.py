"""What remains of a run: its folder, written, read and resumed; simulations, their figures and traces."""

from tandem.policy.rollout import EpisodeMeans, episodes, mean_outcome
from tandem.runs.front import Front, PolicyRecord
from tandem.runs.run import Run, open_run
from tandem.runs.run_dir import RunRecord, being_trained, read_record
from tandem.runs.simulation import Simulation, simulate
from tandem.runs.trainer import Listener, resume, train

__all__ = [
    "EpisodeMeans",
    "Front",
    "Listener",
    "PolicyRecord",
    "Run",
    "RunRecord",
    "Simulation",
    "being_trained",
    "episodes",
    "mean_outcome",
    "open_run",
    "read_record",
    "resume",
    "simulate",
    "train",
]
