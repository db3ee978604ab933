"""Who decides in a fleet: for a trained run the deployed scheduler, which decides as the policy in JAX does."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_fleet import FLEET, SEED, SIZE, Transport

from tandem.errors import InputError
from tandem.federated.fleet.config import FleetConfig
from tandem.federated.fleet.decider import Decider, PolicyDecider
from tandem.federated.fleet.runner import run_rounds, stack_rounds
from tandem.federated.fleet.server import ServerState, aggregate_round, init_server, plan_round
from tandem.federated.fleet.spec import FleetSpec
from tandem.feel import System
from tandem.feel.shield import action_mask
from tandem.policy.heuristics import Threshold
from tandem.runs import Run
from tandem.runs.simulation import simulate_histories
from tandem.scenario import load_scenario
from tandem.serving.fleet_decider import SchedulerDecider, load_decider

PREFERENCE = (0.5, 0.2, 0.3)
SCENARIO = load_scenario("paper", FLEET)
NEVER = Threshold(data_share=1e9)  # trains only if the timetable of the shield says so
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def core(spec: FleetSpec, conditioned_run: Run) -> SchedulerDecider:
    """The decider of a run that was trained on three devices, for this fleet of four."""
    config = FleetConfig(policy=str(conditioned_run.folder), preference=PREFERENCE)
    decide = load_decider(config, SCENARIO, spec.system)
    assert isinstance(decide, SchedulerDecider)
    return decide


def test_fleet_with_a_trained_run_decides_as_the_simulator(
    system: System, spec: FleetSpec, direct: Transport, core: SchedulerDecider, conditioned_run: Run
) -> None:
    rounds = run_rounds(spec, core, init_server(spec, "test"), system.rounds, direct)
    _, outcome = stack_rounds([record for _, record in rounds])
    policy = conditioned_run.policy(core.scheduler.policy.index)
    ((_, expected),) = simulate_histories(system, policy, [SEED])
    np.testing.assert_array_equal(outcome.executed.train, expected.executed.train)
    assert 3 <= outcome.trained.sum() < outcome.trained.size
    np.testing.assert_allclose(outcome.power_w, expected.power_w, rtol=TOLERANCE)
    np.testing.assert_allclose(outcome.frequency_hz, expected.frequency_hz, rtol=TOLERANCE)
    np.testing.assert_allclose(outcome.objectives, expected.objectives, rtol=1e-4, atol=TOLERANCE)


def test_heuristic_stays_in_jax_and_a_preference_is_checked(spec: FleetSpec, conditioned_run: Run) -> None:
    assert isinstance(load_decider(FleetConfig(policy="threshold"), SCENARIO, spec.system), PolicyDecider)
    config = FleetConfig(policy=str(conditioned_run.folder), preference=(-1.0, 0.0, 0.0))
    with pytest.raises(InputError, match="preference"):
        load_decider(config, SCENARIO, spec.system)


def full_server(spec: FleetSpec) -> tuple[ServerState, np.ndarray]:
    """A server whose devices' buffers are almost full, and the devices that must train in this round."""
    server = init_server(spec, "test")
    worst_case = spec.system.worst_case
    for number in range(int(worst_case.period.max())):
        estimate = dataclasses.replace(
            server.estimate,
            round=jnp.asarray(number, jnp.int32),
            data=0.99 * worst_case.max_data,
            queue=jnp.minimum(worst_case.worst_arrivals, worst_case.queue_limit - worst_case.worst_arrivals),
        )
        must_train = ~np.asarray(action_mask(spec.system, estimate))[:, 0]
        if must_train.any():
            return dataclasses.replace(server, estimate=estimate), must_train
    raise AssertionError("the timetable has no place for any device")


@pytest.mark.parametrize("kind", ["heuristic", "scheduler"])
def test_device_that_does_not_respond_serves_even_at_its_place_in_the_timetable(
    spec: FleetSpec, core: SchedulerDecider, kind: str
) -> None:
    decide: Decider = PolicyDecider(spec.system, NEVER) if kind == "heuristic" else core
    server, must_train = full_server(spec)
    told = [instruction.train for instruction in plan_round(spec, decide, server).instructions]
    wanted = must_train & told  # the uplink may not have room for all at once
    assert wanted.any()
    plan = plan_round(spec, decide, dataclasses.replace(server, responded=~wanted))
    told = np.array([instruction.train for instruction in plan.instructions])
    assert not (told & wanted).any()
    np.testing.assert_array_equal(plan.outcome.executed.train, told)  # the simulated round is that of the decision
    assert {instruction.trainers for instruction in plan.instructions} == {told.sum()}
    _, record = aggregate_round(spec, server, plan, {})
    assert np.asarray(plan.outcome.violations.c3)[wanted].all()  # what would happen if they followed the instruction
    assert not np.asarray(record.outcome.violations.c3).any()  # nobody has reported, so no buffer has overflowed


def test_instructions_and_the_simulated_round_have_the_decision(spec: FleetSpec, core: SchedulerDecider) -> None:
    server, _ = full_server(spec)
    key = jax.random.fold_in(spec.policy_key, server.estimate.round)
    decision, plan = core(server.estimate, server.responded, key), plan_round(spec, core, server)
    for n, instruction in enumerate(plan.instructions):
        assert instruction.train == decision.train[n]
        assert (instruction.power_w, instruction.frequency_hz) == (decision.power_w[n], decision.frequency_hz[n])
    np.testing.assert_array_equal(plan.outcome.executed.train, decision.train)
    np.testing.assert_allclose(plan.outcome.power_w, decision.power_w, rtol=1e-6)
    np.testing.assert_allclose(plan.outcome.frequency_hz, decision.frequency_hz, rtol=1e-6)
    assert decision.train.any()


def test_absurd_report_of_a_device_does_not_stop_the_server(spec: FleetSpec, core: SchedulerDecider) -> None:
    server = init_server(spec, "test")
    absurd = jnp.full(SIZE, 1e12)  # the most that a report may say
    ages = dict.fromkeys(("data_age_s", "model_age_s", "waited_s", "last_gain"), absurd)
    full = {
        "queue": spec.system.queue_max * jnp.full(SIZE, 1.001),
        "data": spec.system.data_max * jnp.full(SIZE, 1.001),
    }
    estimate = dataclasses.replace(server.estimate, **ages, **full)
    plan = plan_round(spec, core, dataclasses.replace(server, estimate=estimate))
    assert all(np.isfinite([i.power_w, i.frequency_hz, i.duration_s]).all() for i in plan.instructions)
