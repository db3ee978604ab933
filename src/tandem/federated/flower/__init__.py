"""A fleet's messages over Flower: the only place that knows it."""
