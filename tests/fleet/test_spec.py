"""The fingerprint, by which a device and its server recognise that they have the same scenario and seed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_fleet import FLEET

from tandem.federated.fleet.spec import fingerprint
from tandem.scenario import load_scenario

SCENARIO = load_scenario("paper", FLEET)


@given(name=st.text(min_size=1, max_size=20), rounds=st.integers(1, 1000), folder=st.text("abc/", max_size=9))
def test_fingerprint_ignores_name_rounds_and_paths(name: str, rounds: int, folder: str) -> None:
    task = SCENARIO.accuracy.task.model_copy(update={"pretrained_path": f"/{folder}/x"})  # type: ignore[union-attr]
    accuracy = SCENARIO.accuracy.model_copy(update={"task": task})
    same = SCENARIO.model_copy(update={"name": name, "description": name, "rounds": rounds, "accuracy": accuracy})
    assert fingerprint(same, 3) == fingerprint(SCENARIO, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"fleet.size": 5},
        {"fleet.seed": 1},
        {"workload.request_rate_per_s": 6.1},
        {"accuracy.task": {"kind": "digits", "learning_rate": 0.2}},
        {"accuracy.task": {"kind": "digits", "drift": {"shared": 0.5}}},
        {"limits.queue_max": 300},
        {"training.iterations": 2},
        {"shield.enabled": False},
    ],
)
def test_fingerprint_depends_on_everything_else(change: dict[str, object]) -> None:
    assert fingerprint(load_scenario("paper", {**FLEET, **change}), 3) != fingerprint(SCENARIO, 3)


def test_fingerprint_depends_on_the_seed() -> None:
    assert len({fingerprint(SCENARIO, seed) for seed in range(100)}) == 100
