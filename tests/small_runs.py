"""Scenarios and hyperparameters of the small runs that tests share."""

SMALL = {"fleet.size": 3, "rounds": 10}
# Devices that cannot train on all their samples: without a shield, untrained policies violate constraints.
CROWDED = {
    "training.iterations": 3,
    "limits.data_max": 200,
    "limits.overflow": "discard",
    "fleet.defaults.distance_m": {"uniform": [600, 1000]},
}

TINY = {"num_envs": 2, "update_epochs": 1, "num_minibatches": 1, "validation_episodes": 1}
CONDITIONED = {**TINY, "budget": 300, "preference_divisions": 2, "width": 8, "fleet_sizes": [3, 2]}
POPULATION = {**TINY, "budget": 600, "archive_size": 8, "num_preferences": 3, "network": "mlp"}
POPULATION |= {"shield": False, "tolerance": 1.0, "learning_rate": 4e-3}
