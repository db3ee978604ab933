"""Runs and simulations: their folders, written, read, resumed and evaluated, with tables and figures."""

from tandem.policy.rollout import EpisodeMeans, rollout, rollout_means
from tandem.runs.callbacks import Callback
from tandem.runs.front import Front, PolicyRecord
from tandem.runs.run import Run, open_run
from tandem.runs.run_dir import RunRecord, is_locked, read_record
from tandem.runs.simulation import Simulation, simulate, simulate_to
from tandem.runs.trainer import resume, train, train_seeds

__all__ = [
    "Callback",
    "EpisodeMeans",
    "Front",
    "PolicyRecord",
    "Run",
    "RunRecord",
    "Simulation",
    "is_locked",
    "open_run",
    "read_record",
    "resume",
    "rollout",
    "rollout_means",
    "simulate",
    "simulate_to",
    "train",
    "train_seeds",
]
