"""A scenario's task reaches the system through the public functions, and only through them."""

import gymnasium
import pytest

import tandem
from tandem import feel, runs
from tandem.errors import InputError
from tandem.federated import FederatedSimulation
from tandem.scenario import load_scenario

TASK = {"accuracy.task": "digits", "fleet.size": 3, "rounds": 5}


def test_build_system_measures_accuracy_where_there_is_a_task() -> None:
    measured = tandem.build_system(load_scenario("paper", TASK))
    assert isinstance(measured.measured_accuracy, FederatedSimulation)
    assert tandem.build_system(load_scenario("paper")).measured_accuracy is None


def test_a_task_without_a_model_that_measures_is_refused() -> None:
    with pytest.raises(InputError, match=r"accuracy\.task is 'digits'.*tandem\.build_system"):
        feel.build_system(load_scenario("paper", TASK))


def test_training_measures_accuracy_through_the_public_function() -> None:
    """The budget is refused after the system was built."""
    scenario = load_scenario("paper", TASK)
    with pytest.raises(InputError, match="budget"):
        tandem.train(scenario, options={"budget": 1})
    with pytest.raises(InputError, match=r"accuracy\.task"):
        runs.train(scenario, options={"budget": 1})


def test_gymnasium_makes_an_environment_that_measures_accuracy() -> None:
    single = gymnasium.make("tandem/Feel-v0", overrides=TASK).unwrapped
    several = gymnasium.make_vec("tandem/Feel-v0", num_envs=2, overrides=TASK).unwrapped
    for env in (single, several):
        assert isinstance(env.system.measured_accuracy, FederatedSimulation)  # type: ignore[union-attr]
