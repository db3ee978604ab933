"""The fleet of these tests."""

from tandem.federated.fleet.runner import Transport

SIZE, SEED = 4, 3
DATA_MAX = 100  # small buffers, so that devices train within a few rounds
FLEET = {"accuracy.task": "digits", "fleet.size": SIZE, "rounds": 12, "limits.data_max": DATA_MAX}

__all__ = ["DATA_MAX", "FLEET", "SEED", "SIZE", "Transport"]
