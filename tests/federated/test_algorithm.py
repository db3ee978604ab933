"""Federated algorithms: the ones that docs/extending.md shows, in the simulator."""

import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tandem.federated import FedAvg, FederatedSimulation, FederatedState
from tandem.federated.algorithm import FederatedAlgorithm, aggregate_models
from tandem.feel import Environment, FleetState, System, reset, step
from tandem.policy.heuristics import Threshold

ROUNDS = 8
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def documented(cache: None) -> dict[str, Any]:
    """The names that the section on federated algorithms defines."""
    text = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
    section = text[text.index("## A federated algorithm") :]
    section = section[: section.index("\n## ")]
    code = "\n".join(re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL))
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(code, "extending.md", "exec"), names)
    return names


def with_algorithm(system: System, algorithm: FederatedAlgorithm) -> System:
    return eqx.tree_at(lambda s: s.measured_accuracy.algorithm, system, algorithm)


@eqx.filter_jit
def run(system: System) -> FleetState:
    """The state after a few rounds, in some of which devices train."""
    policy = Threshold(0.25, 0.5, 0.5)

    def one_round(_: Any, state: FleetState) -> FleetState:
        return step(system, state, policy(Environment(system), state, state.key))[0]

    return jax.lax.fori_loop(0, ROUNDS, one_round, reset(system, jax.random.key(1)))


@pytest.fixture(scope="module")
def averaged(digits_system: System) -> FederatedState:
    """The models and samples after some rounds of FedAvg."""
    measured: FederatedState = run(digits_system).measured
    assert int(measured.clients.counters.trained.sum()) > 0
    return measured


def distance(model: Any, other: Any) -> float:
    return float(sum(jnp.sum((a - b) ** 2) for a, b in zip(*map(jax.tree.leaves, (model, other)), strict=True)))


def test_documented_systems_use_the_algorithms(documented: dict[str, Any]) -> None:
    for name, kind in (("fedprox", "FedProx"), ("fedadam", "FedOpt")):
        assert isinstance(documented[name].measured_accuracy.algorithm, documented[kind])


def test_fedprox_without_a_proximal_term_is_fedavg(
    digits_system: System, averaged: FederatedState, documented: dict[str, Any]
) -> None:
    proximal = run(with_algorithm(digits_system, documented["FedProx"](mu=0.0))).measured
    for a, b in zip(*(jax.tree.leaves((s.server_model, s.clients)) for s in (averaged, proximal)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_fedprox_keeps_clients_close_to_the_server(
    digits_system: System, averaged: FederatedState, documented: dict[str, Any]
) -> None:
    simulation = digits_system.measured_accuracy
    assert isinstance(simulation, FederatedSimulation)
    clients = averaged.clients
    trainer = jax.tree.map(lambda leaf: leaf[jnp.argmax(clients.buffer_count)], clients)
    assert int(trainer.buffer_count) > 0

    @eqx.filter_jit
    def moved(mu: Any) -> Any:
        algorithm = documented["FedProx"](mu=mu)
        samples = (trainer.buffer, trainer.buffer_count)
        return algorithm.local_update(simulation.model, *samples, jnp.asarray(20.0), simulation.learning_rate)

    distances = [distance(moved(jnp.asarray(mu)), simulation.model) for mu in (0.0, 0.1, 1.0)]
    assert distances[0] > distances[1] > distances[2] > 0


def test_a_server_optimiser_carries_its_state(digits_system: System, documented: dict[str, Any]) -> None:
    adam = documented["FedOpt"](optax.adam(0.01))
    after = run(with_algorithm(digits_system, adam)).measured
    steps = int(after.server_state[0].count)
    assert 0 < steps < ROUNDS  # only rounds with an update count
    assert distance(after.server_model, digits_system.measured_accuracy.model) > 0  # type: ignore[union-attr]


def test_gradient_steps_of_length_1_on_the_server_are_fedavg(documented: dict[str, Any]) -> None:
    algorithm = documented["FedOpt"](optax.sgd(1.0))
    model, clients, weights = jnp.asarray([5.0, 5.0]), jnp.asarray([[1.0, 2.0], [3.0, 4.0]]), jnp.asarray([1.0, 3.0])
    _, after = algorithm.aggregate(algorithm.init(model), model, clients, weights)
    np.testing.assert_allclose(after, [2.5, 3.5], rtol=1e-6)


def test_a_round_without_samples_changes_neither_state_nor_model(documented: dict[str, Any]) -> None:
    algorithm = documented["FedOpt"](optax.sgd(1.0, momentum=0.9))
    model, clients = jnp.zeros(2), jnp.asarray([[1.0, 2.0], [3.0, 4.0]])
    state, after = aggregate_models(algorithm, algorithm.init(model), model, clients, jnp.asarray([1.0, 1.0]))
    np.testing.assert_allclose(after, [2.0, 3.0])
    again, same = aggregate_models(algorithm, state, after, clients, jnp.zeros(2))
    for a, b in zip(jax.tree.leaves((again, same)), jax.tree.leaves((state, after)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_fedavg_has_no_state_and_algorithms_are_told_apart(documented: dict[str, Any]) -> None:
    assert jax.tree.leaves(FedAvg().init(jnp.zeros(2))) == []
    fedprox = documented["FedProx"]
    assert len({FedAvg().describe(), fedprox(mu=0.1).describe(), fedprox(mu=0.2).describe()}) == 3
    assert fedprox(mu=0.1).describe() == fedprox(mu=0.1).describe()
