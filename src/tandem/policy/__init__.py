"""What decides: hand-written rules, and networks with their distributions and normalisation."""

from tandem.policy.distribution import Draw, FleetDistribution
from tandem.policy.moments import Moments
from tandem.policy.networks import NETWORKS, FleetNetwork, Network, PaperNetwork
from tandem.policy.neural import NeuralPolicy, Normaliser
from tandem.policy.protocol import Policy
from tandem.policy.rules import RULES, DriftPlusPenalty, RandomRule, RoundRobin, Rule, ServeUntilFull, Threshold

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
