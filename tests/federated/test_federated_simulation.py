"""The fleet in one program: the same as its devices one by one, and a measure that any policy can be judged by."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.federated import FederatedSimulation, Fidelity, init_device_drift
from tandem.federated import client as one
from tandem.federated.build import build_system
from tandem.federated.client import ClientState
from tandem.feel import Action, Environment, FleetState, RoundOutcome, System, reset, step
from tandem.learn import init_checkpoint, step_checkpoint
from tandem.learn.registry import config_from_document
from tandem.policy import evaluate as playing
from tandem.policy.heuristics import Threshold
from tandem.runs.problem import build_algorithm
from tandem.runs.simulation import simulate_histories
from tandem.scenario import load_scenario

ROUNDS = 14
advance = eqx.filter_jit(step)
receive, serve, update, after_training = (
    eqx.filter_jit(f) for f in (one.enqueue, one.serve, one.train, one.finish_training)
)


@pytest.fixture(scope="module")
def played(digits_system: System) -> list[tuple[FleetState, RoundOutcome, FleetState]]:
    """An episode in which devices train now and then: state before, outcome, state after."""
    rule, state, course = Threshold(0.25, 0.5, 0.5), reset(digits_system, jax.random.key(1)), []
    for _ in range(ROUNDS):
        action = rule(digits_system, state, state.key)
        after, outcome = advance(digits_system, state, action)
        course.append((state, outcome, after))
        state = after
    return course


def test_a_fleet_is_its_devices_one_by_one(digits_system: System, played: Any) -> None:
    """Every device alone, as a process of its own would hold it, and the average in NumPy."""
    truth = digits_system.measured_accuracy
    assert isinstance(truth, FederatedSimulation)
    first = played[0][0]
    key = jax.random.fold_in(jax.random.key(1), 103)
    worlds = [init_device_drift(key, jnp.asarray(n), 10) for n in range(5)]
    shape, slots = truth.pool.images.shape[1:], truth.capacities

    def receiving(device: ClientState, n: int, number: Any, time_s: Any) -> ClientState:
        return receive(device, truth.pool, truth.drift, worlds[n], number, time_s, slots.arrivals)

    devices = [ClientState.init(truth.model, truth.accuracy, shape, slots.queue, slots.buffer) for _ in range(5)]
    idle_s = -digits_system.idle_round_s / 2
    devices = [receiving(device, n, first.queue[n], idle_s) for n, device in enumerate(devices)]
    server, trainings = truth.model, 0
    for state, outcome, after in played:
        train = np.asarray(outcome.executed.train)
        for n in range(5):
            limits = truth.samples_per_request[n], truth.data_limit[n]
            devices[n] = serve(devices[n], jnp.asarray(not train[n]), *limits)
        np.testing.assert_allclose(outcome.accuracy, [device.accuracy for device in devices], atol=1e-6)
        who = np.flatnonzero(outcome.trained)
        if who.size:
            trainings += 1
            updates = [update(devices[n], truth.algorithm, server, truth.iterations, truth.learning_rate) for n in who]
            counts = np.array([int(devices[n].buffer_count) for n in who], np.float64)
            assert counts.min() > 0
            server = jax.tree.map(
                lambda *leaves, w=counts: jnp.asarray(np.average(np.stack(leaves), axis=0, weights=w), jnp.float32),
                *updates,
            )
        time_s = state.clock_s + outcome.duration_s / 2
        for n in range(5):
            devices[n] = after_training(devices[n], jnp.asarray(train[n]), outcome.trained[n], server)
            devices[n] = receiving(devices[n], n, (outcome.arrived - outcome.dropped)[n], time_s)
            server = jax.tree.map(np.asarray, server)
        for found, expected in zip(jax.tree.leaves(after.measured.server_model), jax.tree.leaves(server), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(device.counters for device in devices))
        assert jax.tree.all(jax.tree.map(np.array_equal, after.measured.clients.counters, stacked))
    assert trainings >= 3


def test_the_new_model_goes_to_participants_only(played: Any) -> None:
    for state, outcome, after in played:
        before, now = (np.asarray(s.measured.clients.model.head.weight) for s in (state, after))
        server = np.asarray(after.measured.server_model.head.weight)
        for n, took_part in enumerate(np.asarray(outcome.trained)):
            np.testing.assert_array_equal(now[n], server if took_part else before[n])


def test_whole_samples_keep_step_with_the_simulators_data(played: Any) -> None:
    for _, _, after in played:
        np.testing.assert_array_less(np.abs(np.asarray(after.measured.clients.waiting_count) - after.queue), 1.01)
        np.testing.assert_array_less(np.abs(np.asarray(after.measured.clients.buffer_count) - after.data), 2.01)
        assert int(np.sum(after.measured.clients.counters.unkept_requests)) == 0


def test_the_scheduler_sees_what_it_saw_without_a_task(played: Any) -> None:
    plain = build_system(load_scenario("paper", {"fleet.size": 5}))
    state = reset(plain, jax.random.key(1))
    for _, measured, after in played:
        state, outcome = advance(plain, state, measured.executed)
        assert outcome.estimated_accuracy is None
        np.testing.assert_array_equal(measured.estimated_accuracy, outcome.accuracy)
        np.testing.assert_array_equal(measured.objectives[1:], outcome.objectives[1:])
        for field in dataclasses.fields(state):
            if field.name not in ("measured", "key", "last_action"):
                np.testing.assert_array_equal(getattr(state, field.name), getattr(after, field.name))


def test_objectives_are_the_truth(played: Any) -> None:
    for _, outcome, _ in played:
        share = np.where(outcome.executed.train, 0, outcome.accuracy).mean()
        np.testing.assert_allclose(outcome.objectives[0], share, atol=1e-6)


def test_never_more_trainers_than_slots(digits_system: System) -> None:
    assert isinstance(digits_system.measured_accuracy, FederatedSimulation)
    everybody = Action(train=jnp.ones(5, bool), power=jnp.ones(5), frequency=jnp.ones(5))
    state = reset(digits_system, jax.random.key(0))
    seen = []
    for _ in range(8):
        state, outcome = advance(digits_system, state, everybody)
        seen.append(int(outcome.executed.train.sum()))
    assert 1 < max(seen) <= digits_system.measured_accuracy.capacities.trainers < 5
    assert int(state.measured.clients.counters.trained.sum()) > 0


def test_training_pays_and_is_recorded(digits_system: System) -> None:
    """Without training, drift ruins the model; with it, it does not. The estimate stands beside what is measured."""
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


def test_an_oracle_can_be_trained() -> None:
    """PPO whose reward is measured: a chunk of it improves weights, on accuracies that no mapping gave."""
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
    oracle = build_algorithm("pc-ppo", load_scenario("paper", changes), config, build_system=build_system)
    start = init_checkpoint(oracle, 0)
    after, (progress,) = step_checkpoint(oracle, start)
    assert progress.rounds > 0
    seen = oracle.run_chunk(0, start.state)[1].points
    assert np.all(np.asarray(seen)[:, 0] > 0.55)  # measured; the mapping says 0.5 at first
    moved = jax.tree.map(
        lambda a, b: not np.array_equal(a, b), *(eqx.filter(c.state, eqx.is_inexact_array) for c in (start, after))
    )
    assert any(jax.tree.leaves(moved))


def test_memory_decides_how_many_fleets_are_played_at_once(
    digits_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = playing.fleet_bytes(Environment(digits_system))
    truth: Any = digits_system.measured_accuracy
    slots = truth.capacities
    assert needed > 2 * digits_system.size * (slots.queue + slots.buffer) * 8 * 8  # images before and after a round
    for room in (0.5, 1.5, 3.5):
        monkeypatch.setattr(playing, "MEMORY_BYTES", truth.working_bytes() + int(room * needed))
        assert playing.max_fleets(Environment(digits_system)) == max(1, int(room))
    monkeypatch.setattr(playing, "MEMORY_BYTES", 2**60)
    assert (
        playing.max_fleets(Environment(digits_system)) == 8192 // digits_system.size // 64
    )  # what two cores have time for
