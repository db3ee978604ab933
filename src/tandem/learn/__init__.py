"""How policies come to be: proximal policy optimisation with a vector critic, and the algorithms built on it."""

from tandem.learn.algorithm import Algorithm, Candidates, ChunkMetrics, Stage
from tandem.learn.config import AlgorithmConfig
from tandem.learn.ppo.gae import compute_gae
from tandem.learn.ppo.ppo import PPOConfig, StepMetrics, TrainState, init_train_state, train_step
from tandem.learn.ppo.surrogate import BarrierSurrogate, ScalarisedSurrogate, Surrogate
from tandem.learn.registry import ALGORITHMS
from tandem.learn.train_loop import Checkpoint, Progress, init_checkpoint, train, validate
from tandem.learn.validation import ValidationResult, validate_candidates

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmConfig",
    "BarrierSurrogate",
    "Candidates",
    "Checkpoint",
    "ChunkMetrics",
    "PPOConfig",
    "Progress",
    "ScalarisedSurrogate",
    "Stage",
    "StepMetrics",
    "Surrogate",
    "TrainState",
    "ValidationResult",
    "compute_gae",
    "init_checkpoint",
    "init_train_state",
    "train",
    "train_step",
    "validate",
    "validate_candidates",
]
