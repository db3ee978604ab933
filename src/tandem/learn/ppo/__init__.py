"""Proximal policy optimisation (PPO) with a vector critic."""
