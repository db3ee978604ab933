"""Calibration of accuracy mappings against measured accuracy."""
