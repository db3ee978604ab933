"""What decides: hand-written rules, and networks with their distributions and normalisation."""

from tandem.policy.base import Policy
from tandem.policy.distributions import Draw, FleetDistribution
from tandem.policy.heuristics import RULES, DriftPlusPenalty, RandomRule, RoundRobin, Rule, ServeUntilFull, Threshold
from tandem.policy.networks import NETWORKS, FleetNetwork, Network, PaperNetwork
from tandem.policy.neural_policy import NeuralPolicy, Normaliser
from tandem.policy.running_stats import Moments

__all__ = [
    "NETWORKS",
    "RULES",
    "Draw",
    "DriftPlusPenalty",
    "FleetDistribution",
    "FleetNetwork",
    "Moments",
    "Network",
    "NeuralPolicy",
    "Normaliser",
    "PaperNetwork",
    "Policy",
    "RandomRule",
    "RoundRobin",
    "Rule",
    "ServeUntilFull",
    "Threshold",
]
