"""What the project finds out about itself: calibration of the shipped scenario."""
