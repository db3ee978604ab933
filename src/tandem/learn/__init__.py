"""Algorithms that train Pareto fronts of policies: PPO with a vector critic, and algorithms based on it."""

from tandem.learn.algorithm import Algorithm, Candidates, ChunkResult, Stage
from tandem.learn.config import AlgorithmConfig
from tandem.learn.ppo.ppo import TrainingMetrics
from tandem.learn.registry import ALGORITHMS, make_config
from tandem.learn.train_loop import Checkpoint, ChunkProgress, init_checkpoint, step_checkpoint, train, validate
from tandem.learn.validation import ValidationResult

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmConfig",
    "Candidates",
    "Checkpoint",
    "ChunkProgress",
    "ChunkResult",
    "Stage",
    "TrainingMetrics",
    "ValidationResult",
    "init_checkpoint",
    "make_config",
    "step_checkpoint",
    "train",
    "validate",
]
