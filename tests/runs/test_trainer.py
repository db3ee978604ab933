"""Training from Python: what a run gives back, that it keeps its promises when stopped, and how options are chosen."""

import csv
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import tandem
from tandem.errors import InputError
from tandem.feel import Environment
from tandem.learn import ALGORITHMS
from tandem.learn.registry import config_document, config_from_document, make_config
from tandem.pareto import nondominated_indices
from tandem.policy.evaluate import evaluate_policies
from tandem.rng import FINAL_EVALUATION_SEEDS
from tandem.runs import Run, resume, simulate
from tandem.runs import trainer as training
from tandem.runs.simulation import episode_keys
from tandem.scenario import Scenario, load_scenario

TINY = {"budget": 300, "num_envs": 2, "update_epochs": 1, "num_minibatches": 1, "validation_episodes": 1}
CONDITIONED = {**TINY, "preference_divisions": 2, "width": 8, "fleet_sizes": [3, 2]}
POPULATION = {**TINY, "archive_size": 4, "num_preferences": 2, "shield": False, "tolerance": 1.0, "network": "mlp"}


@pytest.fixture(scope="module")
def small() -> Scenario:
    return load_scenario("paper", ["fleet.size=3", "rounds=10"])


@pytest.fixture(scope="module")
def run(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tandem.train(small, seed=4, out=tmp_path_factory.mktemp("runs") / "whole", options=CONDITIONED)


@pytest.fixture(scope="module")
def coins(small: Scenario, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return tandem.train(small, "r-ppo", out=tmp_path_factory.mktemp("runs") / "whole", options=POPULATION)


@pytest.mark.parametrize(("name", "options"), [("run", CONDITIONED), ("coins", POPULATION)])
def test_stopped_twice_it_ends_the_same(name, options, small, tmp_path, monkeypatch, request) -> None:
    whole: Run = request.getfixturevalue(name)
    steps: list[int] = []

    def stop_at(number: int):
        def on_progress(progress) -> None:
            steps.append(progress.step)
            if len(steps) == number:
                raise KeyboardInterrupt

        return on_progress

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        tandem.train(small, whole.algorithm_name, seed=whole.seed, out=folder, options=options, on_progress=stop_at(1))
    with pytest.raises(KeyboardInterrupt):
        resume(folder, on_progress=stop_at(3))
    with pytest.raises(InputError, match=r"'tandem train --resume"):
        tandem.open_run(folder)
    again = resume(folder, on_progress=stop_at(-1))
    assert steps == list(range(1, len(steps) + 1))  # no chunk was run twice: stopping writes a checkpoint
    for file in ("front.json", "policies.safetensors"):
        assert (folder / file).read_bytes() == (whole.folder / file).read_bytes()
    assert again.record.rounds == whole.record.rounds


def test_a_run_keeps_its_budget_and_counts_every_use(run: Run, small: Scenario) -> None:
    record = run.record
    assert record.rounds == record.training_rounds + record.validation_rounds <= TINY["budget"]
    assert record.validation_rounds == 6 * small.rounds  # six preferences, one episode each
    assert record.measuring_rounds == len(run.front.policies) * len(FINAL_EVALUATION_SEEDS) * small.rounds
    assert record.versions.keys() == {"python", "jax", "jaxlib", "equinox", "optax", "numpy"}
    assert (record.algorithm, record.preset, record.seed, record.status) == ("pc-ppo", "default", 4, "finished")


def test_progress_has_a_row_for_each_chunk(run: Run) -> None:
    with (run.folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, len(rows) + 1))
    assert int(rows[-1]["rounds"]) == run.record.training_rounds
    times = [float(row["wall_s"]) for row in rows]
    assert times == sorted(times)
    assert times[-1] <= run.record.wall_s


def test_the_front_is_as_measured(run: Run) -> None:
    keys = episode_keys(FINAL_EVALUATION_SEEDS)
    (means,) = evaluate_policies(Environment(run.system()), run.policies(), keys)
    assert np.allclose(means.reward.mean(axis=1), run.front.points, rtol=1e-6)
    one = simulate(run.system(), run.policy(0), FINAL_EVALUATION_SEEDS)
    assert np.allclose(one.objectives.mean(axis=0), run.front.policies[0].objectives, rtol=1e-5)
    accuracies = [policy.objectives[0] for policy in run.front.policies]
    assert accuracies == sorted(accuracies, reverse=True)
    written = json.loads((run.folder / "front.json").read_text())
    assert written["hypervolume"] == run.front.hypervolume == run.record.hypervolume
    assert written["seeds"] == list(FINAL_EVALUATION_SEEDS)
    assert len(nondominated_indices(run.front.points)) >= 1


def test_a_conditioned_run_follows_any_preference(run: Run) -> None:
    assert run.conditioned
    assert {policy.network for policy in run.front.policies} == {0}  # one network for all
    assert np.allclose(run.policy_for([2, 1, 1]).preference, [0.5, 0.25, 0.25])
    with pytest.raises(InputError, match="three weights"):
        run.policy_for([1, 2])


def test_a_policy_knows_the_largest_fleet_it_was_trained_on(run: Run) -> None:
    known = [run.policies().largest_fleet, run.policy(0).largest_fleet, run.policy_for([1, 1, 1]).largest_fleet]
    assert known == [max(CONDITIONED["fleet_sizes"])] * 3


def test_another_run_gives_the_best_of_its_front(coins: Run) -> None:
    assert not coins.conditioned
    chosen = coins.policy_for([0, 0, 1])
    best = int(np.argmax(coins.front.points[:, 2]))
    assert np.array_equal(chosen.preference, coins.policy(best).preference)
    assert chosen.sampling == "sample-modes"
    used = [policy.network for policy in coins.front.policies]
    assert set(used) == set(range(len(set(used))))  # no network is stored that no policy uses
    with pytest.raises(InputError, match="choose one from 0 to"):
        coins.policy(len(used))


def test_options_override_the_scenarios_shield(coins: Run, small: Scenario) -> None:
    assert small.shield.enabled
    assert not coins.scenario.shield.enabled
    assert not coins.system().shielded


def test_stored_policies_are_finite_single_precision(run: Run) -> None:
    arrays = [leaf for leaf in jax.tree.leaves(run.policies()) if hasattr(leaf, "dtype")]
    assert all(leaf.dtype == np.float32 and np.isfinite(leaf).all() for leaf in arrays)


def test_a_folder_is_chosen_if_none_is_named() -> None:
    assert training.default_folder("my/fleet: 2", "s-ppo", "quick", 3) == Path("runs/my-fleet-2-s-ppo-quick-seed3")


def test_tensorboard_gets_a_point_for_each_chunk(small: Scenario, tmp_path: Path) -> None:
    from tandem.runs.callbacks import TensorBoard

    done = tandem.train(small, seed=4, out=tmp_path / "run", options=CONDITIONED, listeners=[TensorBoard()])
    (events,) = (done.folder / "tensorboard").iterdir()
    chunks = len((done.folder / "progress.csv").read_text().splitlines()) - 1
    assert events.read_bytes().count(b"training/hypervolume") == chunks
    assert b"front/hypervolume" in events.read_bytes()


def test_a_preset_changes_the_defaults_and_the_user_the_preset() -> None:
    chosen = make_config("c-moppo", "literal", ["clip_eps=0.3", "reference_point=[0, 6, 50]", "learning_rate=1e-4"])
    assert (chosen.clip_eps, chosen.reference_point, chosen.learning_rate) == (0.3, (0, 6, 50), 1e-4)
    assert chosen.ratio_scope == "fleet"  # the preset's
    assert chosen.gamma == 0.99  # the default
    assert make_config("c-moppo", "literal", {"clip_eps": 0.3}).clip_eps == 0.3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_options_survive_json(name: str) -> None:
    for preset in ALGORITHMS[name].presets:
        options = make_config(name, preset)
        assert config_from_document(name, json.loads(json.dumps(config_document(options))), "there") == options


@pytest.mark.parametrize("seed", [-1, 2**31 + 1, 0.5, True])
def test_a_seed_is_a_whole_number(seed, small: Scenario, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="whole number"):
        tandem.train(small, seed=seed, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
