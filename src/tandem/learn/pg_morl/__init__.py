"""Prediction-guided multi-objective reinforcement learning (PG-MORL)."""
