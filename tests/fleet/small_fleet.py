"""The fleet of these tests."""

from tandem.federated.fleet.runner import Transport

SIZE, SEED = 4, 3
FLEET = {"accuracy.task": "digits", "fleet.size": SIZE, "rounds": 12}

__all__ = ["FLEET", "SEED", "SIZE", "Transport"]
