"""The scheduler as the decider of a fleet agrees with policies in JAX, also when devices do not respond."""

import jax
import numpy as np
import pytest
from exports import Case, make_case, random_states

from marks import slow_after
from tandem.federated.fleet.decider import Decision, PolicyDecider
from tandem.feel import FleetState
from tandem.feel.shield import action_mask
from tandem.serving import Scheduler
from tandem.serving.fleet_decider import SchedulerDecider

STATES = 100
TOLERANCE = 1e-5
COMPUTE_TOLERANCE = 2e-6  # of the round, see ``tandem.serving.numpy_shield``


def assert_same(case: Case, state: FleetState, found: Decision, expected: Decision) -> None:
    np.testing.assert_array_equal(found.train, expected.train)
    np.testing.assert_allclose(found.power_w, expected.power_w, rtol=TOLERANCE)
    cycles = case.system.iterations * case.system.devices.training_cycles_per_sample * state.data
    compute_s, expected_s = cycles / found.frequency_hz, cycles / expected.frequency_hz
    near = np.isclose(found.frequency_hz, expected.frequency_hz, rtol=TOLERANCE, atol=0)
    near |= abs(compute_s - expected_s) <= COMPUTE_TOLERANCE * case.system.worst_case.round_limit_s
    assert near.all()


CASES = [("timetable", 10, "conditioned"), ("discard", 10, "random modes"), ("unshielded", 2, "mlp")]


@pytest.mark.parametrize("given", slow_after(2, CASES), ids=lambda given: given[0])
def test_decider_agrees_with_jax_if_some_devices_do_not_respond(given: tuple[str, int, str]) -> None:
    kind, size, network = given
    case = make_case(kind, size, network, size)
    core = SchedulerDecider(Scheduler(case.file), case.system)
    by_jax = PolicyDecider(case.system, case.policy)
    states, rng = random_states(case.system, STATES, seed=7), np.random.default_rng(8)
    overruled, trained, served = 0, 0, 0
    for n, key in enumerate(jax.random.split(jax.random.key(9), STATES)):
        state: FleetState = jax.tree.map(lambda leaf, n=n: leaf[n], states)
        present = rng.random(size) < 0.7
        found, expected = core(state, present, key), by_jax(state, present, key)
        assert_same(case, state, found, expected)
        assert not (found.train & ~present).any()
        overruled += (~np.asarray(action_mask(case.system, state))[:, 0] & ~present).sum()
        trained, served = trained + found.train.sum(), served + (present & ~found.train).sum()
    assert trained > 0
    assert served > 0
    assert (overruled > 0) == (kind == "timetable")  # it would have made absent devices train
