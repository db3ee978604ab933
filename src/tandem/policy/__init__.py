"""Policies: hand-written heuristics, and networks with their distributions and normalisation."""

from tandem.policy.base import Policy
from tandem.policy.distributions import ActionDistribution, RawAction
from tandem.policy.heuristics import (
    HEURISTICS,
    DriftPlusPenalty,
    Heuristic,
    RandomHeuristic,
    RoundRobin,
    ServeUntilFull,
    Threshold,
)
from tandem.policy.networks import NETWORKS, ActorCritic, DeepSetActorCritic, MLPActorCritic
from tandem.policy.neural_policy import NeuralPolicy, ObservationNormaliser
from tandem.policy.running_stats import RunningStats

__all__ = [
    "HEURISTICS",
    "NETWORKS",
    "ActionDistribution",
    "ActorCritic",
    "DeepSetActorCritic",
    "DriftPlusPenalty",
    "Heuristic",
    "MLPActorCritic",
    "NeuralPolicy",
    "ObservationNormaliser",
    "Policy",
    "RandomHeuristic",
    "RawAction",
    "RoundRobin",
    "RunningStats",
    "ServeUntilFull",
    "Threshold",
]
