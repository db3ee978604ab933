"""What remains of a run: simulations, their figures and traces."""
