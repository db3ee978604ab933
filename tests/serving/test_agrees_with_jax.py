"""The scheduler decides as the policies and the shield in JAX do, in states in which every rule of the shield fires."""

from collections.abc import Iterator
from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exports import Case, Decided, decide_by_jax, keys_of, make_case, random_states, report_of, system_of

from marks import slow_after
from tandem.feel import Action, Environment, FleetState
from tandem.policy import RandomHeuristic
from tandem.policy.rollout import rollout
from tandem.serving import Scheduler, ShieldRule
from tandem.serving.fleet import Fleet
from tandem.serving.numpy_policy import COLUMNS, build_policy, device_constants, observe
from tandem.serving.numpy_shield import FleetConstants, Projection, RequestedAction, action_mask, project

TOLERANCE = 1e-5
KEY = jax.random.key(11)


def unstacked(tree: Any) -> Iterator[Any]:
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf), eqx.filter(tree, eqx.is_array))
    leaves, structure = jax.tree.flatten(arrays)
    return (jax.tree.unflatten(structure, own) for own in zip(*leaves, strict=True))


def without_key(states: FleetState) -> FleetState:
    return eqx.tree_at(lambda s: s.key, states, jax.random.key_data(states.key))


def assert_same(one: Projection, expected: Action) -> None:
    np.testing.assert_array_equal(one.train, expected.train)
    np.testing.assert_allclose(one.power, expected.power, rtol=0, atol=TOLERANCE)
    excess = np.abs(one.frequency - expected.frequency) - frequency_tolerance(one)
    assert (excess <= 0).all(), f"frequencies differ: {one.frequency[excess > 0]} {expected.frequency[excess > 0]}"


def frequency_tolerance(one: Projection) -> np.ndarray:
    """The tolerance of each device's frequency, 1e-5 unless rounding is amplified.

    The shield leaves a trainer the time that its upload leaves. If that is a small part of the round, the rounding of
    the upload's time, which is relative to the round, is a large part of it: in JAX and in NumPy alike.
    """
    constants = one.constants
    compute_s = constants.training_cycles * one.data / constants.frequency_hz(one.frequency)
    amplified = 2e-6 * constants.fleet.worst_case.round_limit_s / np.maximum(compute_s, 1e-30)
    raised = one.train & (one.frequency > one.asked_frequency)
    return np.where(raised, np.maximum(TOLERANCE, amplified), TOLERANCE)


def check_states(case: Case, states: FleetState) -> tuple[ShieldRule, list[Projection]]:
    """Compare all decisions; return the rules that changed any of them, and the projections of random actions."""
    scheduler = Scheduler(case.file)
    constants = FleetConstants(scheduler.fleet)
    found, projections = ShieldRule.UNCHANGED, []
    expected: Decided = decide_by_jax(case.system, case.policy, states, KEY)
    for state, wanted in zip(unstacked(without_key(states)), unstacked(expected), strict=True):
        decision = scheduler.decide(report_of(case.file, case.system, state))
        result: Projection = decision.shield
        assert_same(result, wanted.action)
        assert decision.train is result.train
        np.testing.assert_allclose(decision.power_w, wanted.power_w, rtol=TOLERANCE)
        usual = frequency_tolerance(result) == TOLERANCE
        np.testing.assert_allclose(decision.frequency_hz[usual], wanted.frequency_hz[usual], rtol=TOLERANCE)
        found |= ShieldRule(int(np.bitwise_or.reduce(decision.rules)))
        one = project_random(constants, state, wanted.random)
        assert_same(one, wanted.projected)
        projections.append(one)
        found |= ShieldRule(int(np.bitwise_or.reduce(one.rules())))
    return found, projections


def project_random(constants: FleetConstants, state: FleetState, asked: Action) -> Projection:
    mask = action_mask(constants, int(state.round), state.queue, state.data)
    action = RequestedAction(asked.train, asked.train, asked.power, asked.frequency)
    return project(constants, int(state.round), state.queue, state.data, action, mask)


RAISED = ShieldRule.POWER_RAISED | ShieldRule.TRAINING_FREQUENCY_RAISED | ShieldRule.SERVING_FREQUENCY_RAISED
CROWDED = ShieldRule.NO_DATA | ShieldRule.QUEUE_FULL | ShieldRule.UPLINK_FULL | RAISED
TIMETABLE = ShieldRule.NO_DATA | ShieldRule.QUEUE_FULL | ShieldRule.AWAIT_PLACE | ShieldRule.MUST_TRAIN | RAISED
# System, devices, network, largest fleet of its training, states, and the rules that must fire.
CASES: list[tuple[str, int, str, int | None, int, ShieldRule]] = [
    ("discard", 10, "conditioned", 10, 600, CROWDED),
    ("timetable", 30, "conditioned", 30, 600, TIMETABLE | ShieldRule.UPLINK_FULL),
    ("no slot", 10, "deep-set", None, 600, ShieldRule.SLOW_SERVICE | CROWDED),
    ("timetable", 10, "mlp", 10, 600, TIMETABLE),
    ("unshielded", 2, "deep-set", None, 300, ShieldRule.NO_DATA),
    ("minimal", 2, "mlp", 2, 600, CROWDED & ~ShieldRule.UPLINK_FULL),
    ("discard", 10_000, "conditioned", 30, 10, (CROWDED | ShieldRule.RANKED_OUT) & ~ShieldRule.POWER_RAISED),
    # The lowest power is enough for a device that has the uplink to itself.
    ("discard", 1, "deep-set", None, 600, CROWDED & ~(ShieldRule.UPLINK_FULL | ShieldRule.POWER_RAISED)),
    ("timetable", 200, "conditioned", 30, 100, TIMETABLE | ShieldRule.RANKED_OUT),
    ("discard", 1_000, "conditioned", 1_000, 40, CROWDED & ~ShieldRule.POWER_RAISED),
    ("timetable", 2, "conditioned", 2, 600, TIMETABLE),
    ("unshielded", 30, "mlp", None, 300, ShieldRule.NO_DATA),
]


@pytest.mark.parametrize("given", slow_after(4, CASES), ids=lambda given: "-".join(map(str, given[:3])))
def test_decisions_are_those_of_jax(given: tuple[str, int, str, int | None, int, ShieldRule]) -> None:
    system, size, network, largest, count, rules = given
    case = make_case(system, size, network, largest)
    found, projections = check_states(case, random_states(case.system, count, seed=size))
    assert rules in found, f"did not fire: {(rules & ~found).codes}"
    trainers = [int(one.train.sum()) for one in projections]
    assert 0 in trainers
    assert max(trainers) > 0
    if case.system.shielded and size > 2:
        revoked = [one.willing & ~one.train & (one.asked_power > 0) for one in projections]
        assert any(flags.any() for flags in revoked)
        for one, flags in zip(projections, revoked, strict=True):
            np.testing.assert_array_equal(one.power[flags], one.asked_power[flags])


def joined(*leaves: jax.Array) -> jax.Array:
    """Join the episodes and rounds of several rollouts."""
    return jnp.concatenate([leaf.reshape(-1, *leaf.shape[2:]) for leaf in leaves])


class AllTrainWeakly(eqx.Module):
    """Every device asks to train, with the lowest power and frequency."""

    def __call__(self, environment: Environment, state: FleetState, key: jax.Array) -> Action:
        zero = jnp.zeros(environment.size)
        return Action(jnp.ones(environment.size, bool), zero, zero)


@pytest.mark.parametrize("system", slow_after(1, ["timetable", "discard"]))
def test_decisions_are_those_of_jax_in_states_reached_under_adversarial_actions(system: str) -> None:
    case = make_case(system, 10, "mlp" if system == "timetable" else "conditioned", 10)
    environment = Environment(case.system)
    parts = [
        rollout(environment, policy, jax.random.split(KEY, 4))[0] for policy in (RandomHeuristic(), AllTrainWeakly())
    ]
    states = jax.tree.map(joined, *parts)
    found, _ = check_states(case, states)
    wanted = ShieldRule.MUST_TRAIN if system == "timetable" else ShieldRule.UPLINK_FULL
    assert wanted in found


def test_sampled_modes_are_those_of_jax_for_the_same_random_numbers() -> None:
    case = make_case("discard", 10, "random modes", 10)
    states = random_states(case.system, 300, seed=5)
    expected: Decided = decide_by_jax(case.system, case.policy, states, KEY)
    keys = jax.vmap(lambda key: jax.random.split(key, 3)[0])(keys_of(KEY, states))
    uniforms = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (10,)))(keys))
    fleet = Fleet.from_policy_file(case.file)
    policy = build_policy(case.file, 0, np.full(3, 1 / 3, np.float32), fleet)
    modes = set()
    for state, wanted, uniform in zip(unstacked(without_key(states)), unstacked(expected), uniforms, strict=True):
        report = report_of(case.file, case.system, state)
        columns = np.array([getattr(report, name) for name in COLUMNS], np.float32)
        mask = action_mask(policy.constants, int(state.round), state.queue, state.data)
        features = observe(policy.constants, columns)
        action = policy.act(features, float(state.last_duration_s), state.data, mask, uniform)
        one = project(policy.constants, int(state.round), state.queue, state.data, action, mask)
        assert_same(one, wanted.action)
        modes |= set(one.train.tolist())
    assert modes == {False, True}
    scheduler = Scheduler(case.file)
    state = next(unstacked(without_key(random_states(case.system, 1, seed=6))))
    first, again = (scheduler.decide(report_of(case.file, case.system, state)) for _ in range(2))
    np.testing.assert_array_equal(first.train, again.train)


def test_every_rule_is_expected_to_fire_somewhere() -> None:
    fired = reduce(lambda a, b: a | b, (case[-1] for case in CASES[:7]))
    every = reduce(lambda a, b: a | b, ShieldRule)
    assert fired == every & ~ShieldRule.NOT_PRESENT


def test_plan_for_the_same_fleet_is_that_of_the_simulator() -> None:
    for kind, size in (("discard", 10), ("timetable", 30)):
        case = make_case(kind, size, "conditioned", size)
        fleet = Fleet.from_policy_file(case.file)
        again = fleet.changed()
        np.testing.assert_allclose(device_constants(again), case.file.arrays["observation.constants"], rtol=1e-6)
        for name, value in again.worst_case._asdict().items():
            np.testing.assert_array_equal(value, getattr(system_of(kind, size).worst_case, name), err_msg=name)
        for name, value in again.devices._asdict().items():
            np.testing.assert_array_equal(value, getattr(system_of(kind, size).devices, name), err_msg=name)
