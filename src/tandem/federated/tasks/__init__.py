"""Classification tasks: data, models and pre-training."""
