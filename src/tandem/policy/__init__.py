"""What decides: hand-written rules."""
