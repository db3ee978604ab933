"""The interface of a federated algorithm: the local update of a client, and the aggregation by the server.

The simulator, the calibration and the Flower server run the same object. ``fedavg.FedAvg`` is the default; another
algorithm, such as FedProx or a server optimiser, overrides one method (docs/extending.md).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from tandem.federated.data import Samples
from tandem.feel.types import Array, Count, Scalar

Model = Any  # a pytree of arrays, called with a batch of images in [0, 1]
AlgorithmState = Any  # a pytree of arrays of fixed shapes; None if the algorithm has no state


class FederatedAlgorithm(eqx.Module):
    """Base class of federated algorithms: pure functions whose hyperparameters are the fields of the module."""

    @abstractmethod
    def init(self, model: Model) -> AlgorithmState:
        """Return the server's state before the first round, given the pre-trained model."""

    @abstractmethod
    def local_update(
        self, model: Model, samples: Samples, count: Count, iterations: Scalar, learning_rate: Scalar
    ) -> Model:
        """Return a client's model: the server's, trained for U iterations on the first ``count`` samples."""

    @abstractmethod
    def aggregate(
        self, state: AlgorithmState, model: Model, client_models: Model, weights: Float[Array, " clients"]
    ) -> tuple[AlgorithmState, Model]:
        """Return the server's next state and model.

        ``client_models`` are stacked leaf by leaf. ``weights`` are the clients' numbers of samples; at least one is
        positive, and clients of weight 0 take no part.
        """

    def describe(self) -> str:
        """Return a text that identifies the algorithm and its hyperparameters, for fingerprints."""
        values = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(eqx.filter(self, eqx.is_array_like))]
        return f"{self!r} {values}"


def aggregate_models(
    algorithm: FederatedAlgorithm,
    state: AlgorithmState,
    model: Model,
    client_models: Model,
    weights: Float[Array, " clients"],
) -> tuple[AlgorithmState, Model]:
    """Aggregate the models of a round; state and model do not change in a round without samples."""
    after = algorithm.aggregate(state, model, client_models, weights)
    trained = jnp.sum(weights) > 0
    kept: tuple[AlgorithmState, Model] = jax.tree.map(
        lambda new, old: jnp.where(trained, new, old), after, (state, model)
    )
    return kept
