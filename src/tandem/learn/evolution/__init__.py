"""Evolutionary baselines over policy parameters: MOEA/D and NSGA-II."""
