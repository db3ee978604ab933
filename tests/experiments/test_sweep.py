"""Sweeps: what is finished is never done again, what fails fails alone, and a cell is what its name says."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes import Pretending, Silent, dying, dying_once, fake_result
from tandem.errors import InputError
from tandem.experiments.executors import ProcessExecutor
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.scale import CPU, FULL, SMOKE, scale_named
from tandem.experiments.sweep import jobs_of, sweep
from tandem.experiments.trial import RESULT, Trial, TrialResult, group_by_seed, read_result, trial_dir, write_result

CELLS = [SMOKE.trial(algorithm, seed) for algorithm in ("s-ppo", "pc-ppo") for seed in range(3)]


def test_finished_cells_are_never_run_again(tmp_path: Path) -> None:
    first, second, watcher = Pretending(), Pretending(volume=lambda cell: 1.0), Silent()
    sweep(CELLS[:4], tmp_path, first, 1, watcher)
    results = sweep(CELLS, tmp_path, second, 1, watcher)
    assert watcher.begun == [(0, 4), (4, 6)]
    assert [job[0] for job in second.asked] == CELLS[4:]
    assert [results[cell].hypervolume for cell in CELLS] == [60.0] * 4 + [1.0] * 2
    third = Pretending()
    assert sweep(CELLS, tmp_path, third, 1, watcher).keys() == results.keys()
    assert third.asked == []


def test_a_cell_that_fails_costs_no_other_and_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 6 cells failed.*run the same command again.*the dog ate it"):
        sweep(CELLS, tmp_path, Pretending(fails=lambda cell: cell == CELLS[1]), 1, Silent())
    again = Pretending()
    assert len(sweep(CELLS, tmp_path, again, 1, Silent())) == 6
    assert again.asked == [(CELLS[1],)]


def test_what_is_lost_with_a_killed_worker_is_done_again(tmp_path: Path) -> None:
    watcher = Silent()
    assert len(sweep(CELLS[:3], tmp_path, ProcessExecutor(1, dying_once), 1, watcher)) == 3
    assert (tmp_path / "struck").exists()
    assert [done.failure for done in watcher.done] == [None] * 3


def test_a_job_that_kills_every_worker_is_given_up_and_costs_no_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"1 of 3 cells failed.*its process was killed; is there enough memory"):
        sweep(CELLS[:3], tmp_path, ProcessExecutor(1, dying), 1, Silent())
    assert [read_result(cell, tmp_path) is not None for cell in CELLS[:3]] == [True, True, False]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cell": 3}', "other"])
def test_a_damaged_result_is_no_result(damage: str, tmp_path: Path) -> None:
    write_result(fake_result(CELLS[0]), tmp_path)
    path = trial_dir(CELLS[0], tmp_path) / RESULT
    other = json.dumps(fake_result(dataclasses.replace(CELLS[0], rate=7.0)).document())
    path.write_text(other if damage == "other" else damage)
    assert read_result(CELLS[0], tmp_path) is None


def test_seeds_go_together_and_long_ones_first() -> None:
    cells = [SMOKE.trial("s-ppo", seed, size=size) for size in (2, 3, 5) for seed in range(5)]
    jobs = jobs_of(cells, 2)
    assert sorted((cell for job in jobs for cell in job), key=cells.index) == cells
    assert all(len({cell.kind for cell in job}) == 1 and len(job) <= 2 for job in jobs)
    assert [job[0].size for job in jobs] == [3] * 3 + [5] * 3 + [2] * 3  # the unswept one has marks to measure
    assert [len(group) for group in group_by_seed(cells)] == [5, 5, 5]


GROUND = st.builds(
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
CELL = st.builds(
    Trial,
    algorithm=st.sampled_from(["s-ppo", "pc-ppo"]),
    seed=st.integers(0, 3),
    size=st.integers(1, 3),
    rate=st.sampled_from([2.0, 2.5]),
    preset=st.sampled_from(["default", "quick"]),
    options=st.sampled_from([(), (("beta", 0.5),), (("beta", 0.5), ("fleet_sizes", (2, 3)))]),
    marks=st.integers(1, 2),
    ground=st.none() | GROUND,
)


@given(one=CELL, other=CELL)
def test_a_cell_and_its_name_go_both_ways(one: Trial, other: Trial) -> None:
    assert (one.name == other.name) == (one == other)
    assert (one.kind == other.kind) == (dataclasses.replace(one, seed=9) == dataclasses.replace(other, seed=9))
    assert Trial.from_document(json.loads(json.dumps(one.document()))) == one


def test_cells_have_kept_their_names() -> None:
    """What was trained before cells could have a ground is not trained again."""
    for cell, name in (
        (FULL.trial("pc-ppo", 0), "pc-ppo-n10-r6-baa8d64b-seed0"),
        (FULL.trial("c-moppo", 3, beta=0.5), "c-moppo-n10-r6-4e7cbfc9-seed3"),
        (CPU.trial("s-ppo", 1, size=20), "s-ppo-n20-r6-d28e6e24-seed1"),
        (SMOKE.trial("moea-d", 1), "moea-d-n3-r6-bdf9140a-seed1"),
    ):
        assert cell.name == name


def test_a_result_survives_its_file(tmp_path: Path) -> None:
    result = fake_result(CELLS[2])
    write_result(result, tmp_path)
    back = read_result(CELLS[2], tmp_path)
    assert isinstance(back, TrialResult)
    assert back.document() == result.document()


ON_TASKS = [scale.for_task(task, []) for scale in (SMOKE, CPU, FULL) for task in scale.tasks]
LONGER = [scale.long_budget for scale in ON_TASKS if scale.long_budget]


@pytest.mark.parametrize("scale", [SMOKE, CPU, FULL, *ON_TASKS, *LONGER])
def test_every_algorithm_gets_the_same_rounds(scale) -> None:
    """The plan of each, validation included, is within the budget and spends nearly all of it."""
    from tandem.experiments.plotting import COMPARED
    from tandem.learn.registry import make_config
    from tandem.runs.problem import build_algorithm

    for name in COMPARED:
        cell = scale.cell(name, 0)
        ready = build_algorithm(name, cell.scenario(), make_config(name, cell.preset, cell.changes))
        planned = sum(stage.rounds for stage in ready.stages) + ready.validation_rounds
        assert 0.85 * scale.budget < planned <= scale.budget, name


def test_what_is_said_twice_is_one_cell() -> None:
    """C-MOPPO's usual beta is the same training as C-MOPPO."""
    assert FULL.trial("c-moppo", 3, beta=0.9) == FULL.trial("c-moppo", 3)
    assert FULL.trial("c-moppo", 3, beta=0.5) != FULL.trial("c-moppo", 3)
    assert FULL.trial("pc-ppo", 0, size=10) == FULL.trial("pc-ppo", 0, rate=6.0)


def test_a_scale_that_is_not_there() -> None:
    with pytest.raises(InputError, match=r"scale papr: is not known; write 'paper'"):
        scale_named("papr")


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:9", "no Ray cluster answers there"), ("nowhere", "is not HOST:PORT")],
)
def test_a_cluster_that_is_not_there_is_refused_at_once(address: str, why: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="install it with pip install 'tandem[ray]'")
    from tandem.experiments.ray_executor import RayExecutor

    with pytest.raises(InputError, match=rf"--address {address}: {why}"):
        sweep(CELLS, tmp_path, RayExecutor(address), 1, Silent())
