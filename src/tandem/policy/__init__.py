"""What decides: hand-written rules."""

from tandem.policy.rules import RULES, DriftPlusPenalty, RandomRule, RoundRobin, Rule, ServeUntilFull, Threshold

__all__ = ["RULES", "DriftPlusPenalty", "RandomRule", "RoundRobin", "Rule", "ServeUntilFull", "Threshold"]
