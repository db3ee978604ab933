"""What a simulation reports is what its rounds add up to."""

import csv
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tandem.errors import InputError
from tandem.feel import System, build_system
from tandem.policy import RandomHeuristic, Threshold
from tandem.runs import simulate
from tandem.runs.plot_simulation import write_figure
from tandem.runs.simulation import simulate_histories, summarise
from tandem.runs.trace import check_format, trace_table, write_trace
from tandem.scenario import load_scenario

NAMES = [f"device-{n}" for n in range(10)]


@pytest.fixture(scope="module")
def unshielded() -> System:
    return build_system(load_scenario("paper", {"shield.enabled": False, "rounds": 30}))


def test_means_are_those_of_the_history(unshielded: System) -> None:
    seeds = [3, 4]
    result = simulate(unshielded, RandomHeuristic(), seeds)
    for row, (states, outcome) in enumerate(simulate_histories(unshielded, RandomHeuristic(), seeds)):
        serving = ~outcome.executed.train
        expected = [
            np.mean(serving * outcome.accuracy),
            np.mean(serving * outcome.latency_s),
            np.mean(outcome.energy_j),
        ]
        np.testing.assert_allclose(result.objectives[row], expected, rtol=1e-5)
        broken = np.asarray(outcome.violations.by_device()).any(axis=1)
        assert result.violation_rate[row] == pytest.approx(broken.mean())
        assert result.violation_rates[row][0] == pytest.approx(outcome.violations.c1.any(axis=1).mean())
        assert result.dropped_requests[row] == pytest.approx(outcome.dropped.sum(), rel=1e-5)
        assert result.round_s[row] == pytest.approx(np.diff(states.clock_s).mean(), rel=0.05)
        rewards = np.where(broken[:, None], [-0.1, -8, -50], outcome.objectives)
        np.testing.assert_allclose(result.reward[row], rewards.mean(axis=0), rtol=1e-5)
    assert result.violation_rate.min() > 0  # or this test says nothing about penalties


def test_episodes_that_were_kept_tell_the_same(unshielded: System) -> None:
    """With random decisions and no shield: constraints are violated, requests dropped and samples discarded."""
    seeds = (3, 4)
    told = simulate(unshielded, RandomHeuristic(), seeds)
    again = summarise(seeds, list(simulate_histories(unshielded, RandomHeuristic(), seeds)))
    assert again.seeds == told.seeds
    assert told.violation_rate.min() > 0
    assert told.discarded_samples.min() > 0
    for name in vars(told):
        np.testing.assert_allclose(getattr(again, name), getattr(told, name), rtol=1e-5, err_msg=name)


def test_a_seed_plays_the_same_alone_and_in_company(paper_system: System) -> None:
    together = simulate(paper_system, RandomHeuristic(), range(5))
    alone = simulate(paper_system, RandomHeuristic(), [3])
    np.testing.assert_array_equal(together.objectives[3], alone.objectives[0])


def test_seeds_differ(paper_system: System) -> None:
    objectives = simulate(paper_system, RandomHeuristic(), range(4)).objectives
    assert len(np.unique(objectives[:, 0])) == 4


def test_summary_has_intervals_only_for_several_seeds(paper_system: System) -> None:
    one = simulate(paper_system, Threshold(), [0]).summary()
    assert one["objectives_half_width_95"]["accuracy"] is None
    several = simulate(paper_system, RandomHeuristic(), range(4))
    values = several.objectives[:, 0]
    expected = 3.182446 * values.std(ddof=1) / 2  # Student's t at 97.5 % with 3 degrees of freedom
    assert several.summary()["objectives_half_width_95"]["accuracy"] == pytest.approx(expected, rel=1e-5)


def test_trace_has_a_row_for_each_seed_round_and_device(unshielded: System, tmp_path: Path) -> None:
    history = list(simulate_histories(unshielded, RandomHeuristic(), [0, 1]))
    tables = [trace_table(seed, NAMES, *rounds) for seed, rounds in enumerate(history)]
    write_trace(tmp_path / "trace.csv", tables)
    write_trace(tmp_path / "trace.parquet", tables)
    with (tmp_path / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 30 * 10
    states, outcome = history[1]
    row = rows[(30 + 7) * 10 + 4]
    assert (row["seed"], row["round"], row["device"]) == ("1", "7", "device-4")
    assert float(row["queue"]) == pytest.approx(states.queue[7, 4], rel=1e-5)
    assert float(row["energy_j"]) == pytest.approx(outcome.energy_j[7, 4], rel=1e-5)
    broken = {name for name in ("C1", "C2", "C3", "C4", "C5") if getattr(outcome.violations, name.lower())[7, 4]}
    assert set(row["violated"].split()) == broken
    assert any(row["violated"] for row in rows)
    parquet = pyarrow.parquet.read_table(tmp_path / "trace.parquet").to_pylist()
    assert list(parquet[0]) == list(rows[0])
    assert parquet[377]["energy_j"] == pytest.approx(float(rows[377]["energy_j"]), rel=1e-5)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_a_trace_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("old")

    def failing():
        yield {"seed": np.zeros(3)}
        raise RuntimeError("disk on fire")

    with pytest.raises(RuntimeError):
        write_trace(path, failing())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_unknown_format_is_refused() -> None:
    with pytest.raises(InputError, match="csv, parquet"):
        check_format("xlsx")


@pytest.mark.parametrize("size", [1, 10, 60])
def test_figure_is_a_picture(size: int, tmp_path: Path) -> None:
    system = build_system(load_scenario("paper", {"fleet.size": size, "rounds": 20}))
    states, outcome = next(simulate_histories(system, Threshold(), [0]))
    write_figure(tmp_path / "figure.png", "a title", [f"device-{n}" for n in range(size)], system, states, outcome)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.png").stat().st_size > 20_000
