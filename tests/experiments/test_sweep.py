"""Sweeps: finished trials are never run again, a failure costs no other trial, and a trial's name identifies it."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import FakeExecutor, RecordingCallback, fake_result, killed_always, killed_once
from tandem.errors import InputError
from tandem.experiments import trial as trial_module
from tandem.experiments.executors import ProcessExecutor, RayExecutor
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.scale import SCALES, load_scale
from tandem.experiments.sweep import make_jobs, sweep
from tandem.experiments.trial import RESULT, Trial, TrialResult, group_by_seed, read_result, trial_dir, write_result
from tandem.learn import ALGORITHMS
from tandem.scenario import load_scenario

SMOKE, CPU, FULL = map(load_scale, SCALES)
TRIALS = [SMOKE.trial(algorithm, seed) for algorithm in ("s-ppo", "pc-ppo") for seed in range(3)]


def test_finished_trials_are_never_run_again(tmp_path: Path) -> None:
    first, second, callback = FakeExecutor(), FakeExecutor(hypervolume=lambda trial: 1.0), RecordingCallback()
    sweep(TRIALS[:4], tmp_path, first, 1, callback)
    results = sweep(TRIALS, tmp_path, second, 1, callback)
    assert callback.started == [(0, 4), (4, 6)]
    assert [job[0] for job in second.jobs] == TRIALS[4:]
    assert [results[trial].hypervolume for trial in TRIALS] == [60.0] * 4 + [1.0] * 2
    third = FakeExecutor()
    assert sweep(TRIALS, tmp_path, third).keys() == results.keys()
    assert third.jobs == []


def test_failed_trial_costs_no_other_and_is_retried(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 6 trials failed.*run the same command again.*no space left"):
        sweep(TRIALS, tmp_path, FakeExecutor(fails=lambda trial: trial == TRIALS[1]))
    second = FakeExecutor()
    assert len(sweep(TRIALS, tmp_path, second)) == 6
    assert second.jobs == [(TRIALS[1],)]


@pytest.mark.slow
def test_jobs_lost_with_a_killed_process_are_retried(tmp_path: Path) -> None:
    callback = RecordingCallback()
    assert len(sweep(TRIALS[:3], tmp_path, ProcessExecutor(1, killed_once), 1, callback)) == 3
    assert (tmp_path / "killed").exists()
    assert [outcome.failure for outcome in callback.outcomes] == [None] * 3


def test_job_that_kills_every_process_is_given_up_and_costs_no_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 3 trials failed.*its process was killed; is there enough memory"):
        sweep(TRIALS[:3], tmp_path, ProcessExecutor(1, killed_always))
    assert [read_result(trial, tmp_path) is not None for trial in TRIALS[:3]] == [True, True, False]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"trial": 3}', "other"])
def test_damaged_result_is_ignored(damage: str, tmp_path: Path) -> None:
    write_result(fake_result(TRIALS[0]), tmp_path)
    path = trial_dir(TRIALS[0], tmp_path) / RESULT
    other = json.dumps(fake_result(dataclasses.replace(TRIALS[0], rate=7.0)).document())
    path.write_text(other if damage == "other" else damage)
    assert read_result(TRIALS[0], tmp_path) is None


@pytest.fixture
def changed_preset(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """A function that changes a constant of the scenario ``paper``, as a new version of Tandem might."""

    def change() -> None:
        def load_changed(name, overrides):
            return load_scenario(name, {"limits.queue_max": 399, **overrides})

        monkeypatch.setattr(trial_module, "load_scenario", load_changed)
        trial_module._fingerprint.cache_clear()

    yield change
    trial_module._fingerprint.cache_clear()


def test_stored_result_of_another_preset_is_not_reused(changed_preset: Callable[[], None], tmp_path: Path) -> None:
    trial = TRIALS[0]
    sweep([trial], tmp_path, FakeExecutor())
    old = trial_dir(trial, tmp_path)
    changed_preset()
    assert trial.scenario().limits.queue_max == 399
    second = FakeExecutor(hypervolume=lambda trial: 1.0)
    assert sweep([trial], tmp_path, second)[trial].hypervolume == 1.0
    assert second.jobs == [(trial,)]
    assert (old / RESULT).exists()  # the trial has another folder: an unfinished run of the old preset is not resumed
    assert trial_dir(trial, tmp_path) != old


def test_result_with_another_fingerprint_or_none_is_not_reused(tmp_path: Path) -> None:
    write_result(fake_result(TRIALS[0]), tmp_path)
    path = trial_dir(TRIALS[0], tmp_path) / RESULT
    document = json.loads(path.read_text())
    assert document["scenario"] == TRIALS[0].fingerprint
    path.write_text(json.dumps({**document, "scenario": "0" * 8}))
    assert read_result(TRIALS[0], tmp_path) is None
    path.write_text(json.dumps({key: value for key, value in document.items() if key != "scenario"}))
    assert read_result(TRIALS[0], tmp_path) is None


def test_overrides_change_the_scenario_and_the_identity() -> None:
    plain = SMOKE.trial("s-ppo", 0, curve_points=1)
    harder = SMOKE.trial("s-ppo", 0, curve_points=1, overrides={"training.iterations": 2, "limits.data_max": 300})
    assert harder.overrides == (("limits.data_max", 300), ("training.iterations", 2))
    assert (harder.scenario().training.iterations, harder.scenario().limits.data_max) == (2, 300)
    assert harder.fingerprint != plain.fingerprint
    assert "overrides" not in plain.document()
    assert SMOKE.trial("s-ppo", 0, overrides={"rounds": 50}).curve_points == 1


def test_jobs_group_seeds_and_the_longest_come_first() -> None:
    trials = [SMOKE.trial("s-ppo", seed, size=size) for size in (2, 3, 5) for seed in range(5)]
    jobs = make_jobs(trials, 2)
    assert sorted((trial for job in jobs for trial in job), key=trials.index) == trials
    assert all(len({trial.without_seed for trial in job}) == 1 and len(job) <= 2 for job in jobs)
    assert [job[0].size for job in jobs] == [3] * 3 + [5] * 3 + [2] * 3  # the default size has a longer learning curve
    assert [len(group) for group in group_by_seed(trials)] == [5, 5, 5]


SOURCES = st.builds(
    RewardSource,
    task=st.sampled_from(["digits", "cifar10"]),
    mapping=st.just("log-rational"),
    kappa=st.sampled_from([(0.1, 2.0, 0.01), (0.1, 2.0, 0.02)]),
    decay_per_s=st.sampled_from([0.005, 0.0]),
    pretrained=st.just(0.9),
    episodes=st.integers(1, 2),
    oracle=st.booleans(),
    data=st.sampled_from([None, "here", "there"]),
)
SPECIFICATIONS = st.builds(
    Trial,
    algorithm=st.sampled_from(["s-ppo", "pc-ppo"]),
    seed=st.integers(0, 3),
    size=st.integers(1, 3),
    rate=st.sampled_from([2.0, 2.5]),
    preset=st.sampled_from(["default", "quick"]),
    config=st.sampled_from([(), (("gamma", 0.5),), (("gamma", 0.5), ("reference_point", (0.0, 4.0, 40.0)))]),
    curve_points=st.integers(1, 2),
    reward_source=st.none() | SOURCES,
    overrides=st.sampled_from([(), (("limits.data_max", 300),), (("rewards.penalty", (-0.1, -8.0, -50.0)),)]),
)


@settings(deadline=None)  # the first name of a scenario loads it
@given(one=SPECIFICATIONS, other=SPECIFICATIONS)
def test_trials_are_equal_exactly_if_their_names_are(one: Trial, other: Trial) -> None:
    assert (one.name == other.name) == (one == other)
    same_but_seed = dataclasses.replace(one, seed=9) == dataclasses.replace(other, seed=9)
    assert (one.without_seed == other.without_seed) == same_but_seed
    assert Trial.from_document(json.loads(json.dumps(one.document()))) == one


def test_trials_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of these names makes stored trials train again, as a change of a default does."""
    monkeypatch.setattr(Trial, "fingerprint", "0" * 8)  # other scenarios have other names
    for trial, name in (
        (FULL.trial("pc-ppo", 0), "pc-ppo-n10-r6-c659a425-seed0"),
        (FULL.trial("c-moppo", 3, beta=0.5), "c-moppo-n10-r6-05669f5b-seed3"),
        (CPU.trial("s-ppo", 1, size=20), "s-ppo-n20-r6-fdbadae4-seed1"),
        (SMOKE.trial("moea-d", 1), "moea-d-n3-r6-41b15767-seed1"),
    ):
        assert trial.name == name


def test_another_default_is_another_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = FULL.trial("pc-ppo", 0)
    before = trial.name
    monkeypatch.setitem(ALGORITHMS["pc-ppo"].presets, "default", {"gamma": 0.98})
    trial_module._hyperparameters.cache_clear()
    assert trial.name != before
    monkeypatch.undo()
    trial_module._hyperparameters.cache_clear()
    assert trial.name == before


def test_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    result = fake_result(TRIALS[2])
    write_result(result, tmp_path)
    back = read_result(TRIALS[2], tmp_path)
    assert isinstance(back, TrialResult)
    assert back.document() == result.document()


ON_TASKS = [scale.for_task(task, []) for scale in (SMOKE, CPU, FULL) for task in scale.tasks]
LONG = [scale.long_budget for scale in ON_TASKS if scale.long_budget]


@pytest.mark.parametrize("scale", [SMOKE, CPU, FULL, *ON_TASKS, *LONG])
def test_every_algorithm_gets_the_same_budget(scale) -> None:
    """The plan of each, validation included, is within the budget and uses nearly all of it."""
    from tandem.experiments.plotting import COMPARED
    from tandem.learn.registry import make_config
    from tandem.runs.trainer import build_algorithm

    for name in COMPARED:
        trial = scale.trial(name, 0)
        algorithm = build_algorithm(name, trial.scenario(), make_config(name, trial.preset, trial.changes))
        planned = sum(stage.rounds for stage in algorithm.stages) + algorithm.validation_rounds
        assert 0.85 * scale.budget < planned <= scale.budget, name


def test_default_values_make_the_same_trial() -> None:
    assert FULL.trial("c-moppo", 3, beta=0.9) == FULL.trial("c-moppo", 3)
    assert FULL.trial("c-moppo", 3, beta=0.5) != FULL.trial("c-moppo", 3)
    assert FULL.trial("pc-ppo", 0, size=10) == FULL.trial("pc-ppo", 0, rate=6.0)


def test_unknown_scale_is_refused() -> None:
    with pytest.raises(InputError, match=r"--scale ful: unknown scale; .*'full'"):
        load_scale("ful")


@pytest.mark.parametrize(
    ("address", "reason"),
    [("127.0.0.1:9", "no Ray cluster answers there"), ("nowhere", "is not HOST:PORT")],
)
def test_unreachable_cluster_is_refused_at_once(address: str, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="install it with pip install 'tandem[ray]'")
    with pytest.raises(InputError, match=rf"--address {address}: {reason}"):
        sweep(TRIALS, tmp_path, RayExecutor(address))
