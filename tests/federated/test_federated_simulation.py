"""The fleet in one program equals its clients one by one, and measures accuracy for any policy."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from small_runs import CROWDED
from tandem.federated import FederatedSimulation, Fidelity, client, init_device_drift
from tandem.federated.build import build_system
from tandem.federated.client import ClientState
from tandem.feel import Action, Environment, FleetState, RoundOutcome, System, reset, step
from tandem.learn import init_checkpoint, step_checkpoint
from tandem.learn.registry import config_from_document
from tandem.policy import evaluate
from tandem.policy.heuristics import Threshold
from tandem.rng import FleetStream, fold_stream
from tandem.runs.simulation import simulate_histories
from tandem.runs.trainer import build_algorithm
from tandem.scenario import load_scenario

ROUNDS = 14
advance = eqx.filter_jit(step)
enqueue, serve, update, finish = (
    eqx.filter_jit(f) for f in (client.enqueue, client.serve, client.train, client.finish_training)
)


@pytest.fixture(scope="module")
def episode(digits_system: System) -> list[tuple[FleetState, RoundOutcome, FleetState]]:
    """Rounds in some of which devices train: state before, outcome, state after."""
    policy, rounds = eqx.filter_jit(Threshold(0.25, 0.5, 0.5)), []
    state = eqx.filter_jit(reset)(digits_system, jax.random.key(1))
    for _ in range(ROUNDS):
        after, outcome = advance(digits_system, state, policy(Environment(digits_system), state, state.key))
        rounds.append((state, outcome, after))
        state = after
    return rounds


def test_a_fleet_equals_its_clients_one_by_one(digits_system: System, episode: Any) -> None:
    """Every client by itself, as in a process of its own, and the average in NumPy."""
    simulation = digits_system.measured_accuracy
    assert isinstance(simulation, FederatedSimulation)
    first = episode[0][0]
    key = fold_stream(jax.random.key(1), FleetStream.MEASURED_ACCURACY)
    drifts = [eqx.filter_jit(init_device_drift)(key, jnp.asarray(n), 10) for n in range(5)]
    shape, slots = simulation.pool.images.shape[1:], simulation.capacities

    def receive(one: ClientState, n: int, number: Any, time_s: Any) -> ClientState:
        return enqueue(one, simulation.pool, simulation.drift, drifts[n], number, time_s, slots.arrivals)

    fresh = ClientState.init(simulation.model, simulation.accuracy, shape, slots.queue, slots.buffer)
    idle_s = -digits_system.idle_round_s / 2
    clients = [receive(fresh, n, first.queue[n], idle_s) for n in range(5)]
    server, trainings = simulation.model, 0
    for state, outcome, after in episode:
        train = np.asarray(outcome.executed.train)
        for n in range(5):
            limits = simulation.samples_per_request[n], simulation.data_limit[n]
            clients[n] = serve(clients[n], jnp.asarray(not train[n]), *limits)
        np.testing.assert_allclose(outcome.accuracy, [one.accuracy for one in clients], atol=1e-6)
        who = np.flatnonzero(outcome.trained)
        if who.size:
            trainings += 1
            how = (simulation.algorithm, server, simulation.iterations, simulation.learning_rate)
            updates = [update(clients[n], *how) for n in who]
            counts = np.array([int(clients[n].buffer_count) for n in who], np.float64)
            assert counts.min() > 0
            server = jax.tree.map(
                lambda *leaves, w=counts: jnp.asarray(np.average(np.stack(leaves), axis=0, weights=w), jnp.float32),
                *updates,
            )
        time_s = state.clock_s + outcome.duration_s / 2
        for n in range(5):
            clients[n] = finish(clients[n], jnp.asarray(train[n]), outcome.trained[n], server)
            clients[n] = receive(clients[n], n, (outcome.arrived - outcome.dropped)[n], time_s)
            server = jax.tree.map(np.asarray, server)
        for found, expected in zip(jax.tree.leaves(after.measured.server_model), jax.tree.leaves(server), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(one.counters for one in clients))
        assert jax.tree.all(jax.tree.map(np.array_equal, after.measured.clients.counters, stacked))
    assert trainings >= 3


def test_only_participants_get_the_new_model(episode: Any) -> None:
    for state, outcome, after in episode:
        before, now = (np.asarray(s.measured.clients.model.head.weight) for s in (state, after))
        server = np.asarray(after.measured.server_model.head.weight)
        for n, took_part in enumerate(np.asarray(outcome.trained)):
            np.testing.assert_array_equal(now[n], server if took_part else before[n])


def test_whole_samples_follow_the_simulators_fluid_counts(episode: Any) -> None:
    for _, _, after in episode:
        np.testing.assert_array_less(np.abs(np.asarray(after.measured.clients.waiting_count) - after.queue), 1.01)
        np.testing.assert_array_less(np.abs(np.asarray(after.measured.clients.buffer_count) - after.data), 2.01)
        assert int(np.sum(after.measured.clients.counters.unkept_requests)) == 0


def test_the_scheduler_observes_the_same_as_without_a_task(episode: Any) -> None:
    plain = build_system(load_scenario("paper", {"fleet.size": 5}))
    state = reset(plain, jax.random.key(1))
    for _, measured, after in episode:
        state, outcome = advance(plain, state, measured.executed)
        assert outcome.estimated_accuracy is None
        np.testing.assert_array_equal(measured.estimated_accuracy, outcome.accuracy)
        np.testing.assert_array_equal(measured.objectives[1:], outcome.objectives[1:])
        for field in dataclasses.fields(state):
            if field.name not in ("measured", "key", "last_action"):
                np.testing.assert_array_equal(getattr(state, field.name), getattr(after, field.name))


def test_the_accuracy_objective_is_the_measured_one(episode: Any) -> None:
    for _, outcome, _ in episode:
        share = np.where(outcome.executed.train, 0, outcome.accuracy).mean()
        np.testing.assert_allclose(outcome.objectives[0], share, atol=1e-6)


def test_never_more_trainers_than_slots(cache: None) -> None:
    # A fleet whose uplink cannot carry the updates of all five devices.
    digits_system = build_system(load_scenario("paper", {"accuracy.task": "digits", "fleet.size": 5, **CROWDED}))
    assert isinstance(digits_system.measured_accuracy, FederatedSimulation)
    everybody = Action(train=jnp.ones(5, bool), power=jnp.ones(5), frequency=jnp.ones(5))
    state = reset(digits_system, jax.random.key(0))
    trainers = []
    for _ in range(8):
        state, outcome = advance(digits_system, state, everybody)
        trainers.append(int(outcome.executed.train.sum()))
    assert 1 < max(trainers) <= digits_system.measured_accuracy.capacities.trainers < 5
    assert int(state.measured.clients.counters.trained.sum()) > 0


@pytest.mark.slow
def test_training_counteracts_drift(digits_system: System) -> None:
    """Without training, drift ruins the model; with training it does not. The estimate is recorded as well."""
    never, sometimes = (
        Fidelity.from_history(
            outcome for _, outcome in simulate_histories(digits_system, Threshold(share, 0.5, 0.5), [0, 1])
        )
        for share in (2.0, 0.3)
    )
    late = slice(60, 100)
    assert np.nanmean(never.measured[late]) < 0.6 < np.nanmean(sometimes.measured[late])
    summary = sometimes.summary([f"device-{n}" for n in range(5)])
    assert summary["rounds"] == np.isfinite(sometimes.measured).sum() < sometimes.measured.size
    assert list(summary["by_device"]) == [f"device-{n}" for n in range(5)]
    both = np.isfinite(sometimes.measured)
    expected = np.corrcoef(sometimes.measured[both], sometimes.estimated[both])[0, 1]
    assert summary["correlation"] == pytest.approx(expected)


@pytest.mark.slow
def test_ppo_trains_on_measured_rewards() -> None:
    """A chunk of PPO changes the weights, on rewards that no mapping estimated."""
    changes = {"accuracy.task": "digits", "fleet.size": 5, "rounds": 10}
    options = {
        "budget": 240,
        "num_envs": 2,
        "update_epochs": 1,
        "num_minibatches": 1,
        "preference_divisions": 2,
        "validation_episodes": 1,
        "fleet_sizes": [5],
    }
    config = config_from_document("pc-ppo", options, "test")
    algorithm = build_algorithm("pc-ppo", load_scenario("paper", changes), config, build_system=build_system)
    start = init_checkpoint(algorithm, 0)
    after, (progress,) = step_checkpoint(algorithm, start)
    assert progress.rounds > 0
    points = algorithm.run_chunk(0, start.state)[1].points
    assert np.all(np.asarray(points)[:, 0] > 0.55)  # measured; the mapping estimates 0.5 at first
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), *(eqx.filter(c.state, eqx.is_inexact_array) for c in (start, after))
    )
    assert any(jax.tree.leaves(moved))


def test_memory_limits_the_number_of_simultaneous_fleets(
    digits_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = Environment(digits_system)
    needed = evaluate.fleet_bytes(environment)
    simulation: Any = digits_system.measured_accuracy
    slots = simulation.capacities
    assert needed > 2 * digits_system.size * (slots.queue + slots.buffer) * 8 * 8  # images before and after a round
    for room in (0.5, 1.5, 3.5):
        monkeypatch.setattr(evaluate, "MEMORY_BYTES", simulation.working_bytes() + int(room * needed))
        assert evaluate.max_fleets(environment) == max(1, int(room))
    monkeypatch.setattr(evaluate, "MEMORY_BYTES", 2**60)
    assert evaluate.max_fleets(environment) == 8192 // digits_system.size // 64  # what two cores have time for
