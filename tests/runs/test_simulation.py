"""A simulation reports what its rounds add up to, and writes its results completely or not at all."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from small_runs import CROWDED
from tandem.errors import InputError
from tandem.feel import System, build_system
from tandem.policy import RandomHeuristic
from tandem.runs import simulate
from tandem.runs import simulation as simulation_module
from tandem.runs.plot_simulation import write_figure
from tandem.runs.simulation import SavedSimulation, simulate_histories, simulate_to, summarise
from tandem.runs.trace import check_format, trace_table, write_trace
from tandem.scenario import Scenario, load_scenario

DEVICES, ROUNDS = 6, 20
NAMES = [f"device-{n}" for n in range(DEVICES)]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("paper", {**CROWDED, "shield.enabled": False, "rounds": ROUNDS, "fleet.size": DEVICES})


@pytest.fixture(scope="module")
def unshielded(scenario: Scenario) -> System:
    return build_system(scenario)


def test_means_are_those_of_the_history(unshielded: System) -> None:
    """With random decisions and no shield: constraints are violated, requests dropped and samples discarded."""
    seeds = (3, 4)
    result = simulate(unshielded, RandomHeuristic(), seeds)
    histories = list(simulate_histories(unshielded, RandomHeuristic(), seeds))
    for row, (states, outcome) in enumerate(histories):
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
    assert result.violation_rate.min() > 0  # otherwise penalties are not tested
    assert result.discarded_samples.min() > 0
    again = summarise(seeds, histories)
    assert again.seeds == result.seeds
    for name in vars(result):
        np.testing.assert_allclose(getattr(again, name), getattr(result, name), rtol=1e-5, err_msg=name)


def test_a_seed_gives_the_same_result_alone_and_among_others(unshielded: System) -> None:
    together = simulate(unshielded, RandomHeuristic(), (2, 3)).objectives
    alone = simulate(unshielded, RandomHeuristic(), [3]).objectives
    np.testing.assert_array_equal(together[1], alone[0])
    assert together[0, 0] != together[1, 0]


def test_summary_has_intervals_only_for_several_seeds(unshielded: System) -> None:
    one = simulate(unshielded, RandomHeuristic(), [3]).summary()
    assert one["objectives_half_width_95"]["accuracy"] is None
    several = simulate(unshielded, RandomHeuristic(), (3, 4))
    values = several.objectives[:, 0]
    expected = 12.706205 * values.std(ddof=1) / np.sqrt(2)  # Student's t at 97.5 % with 1 degree of freedom
    assert several.summary()["objectives_half_width_95"]["accuracy"] == pytest.approx(expected, rel=1e-5)


def test_trace_has_a_row_for_each_seed_round_and_device(unshielded: System, tmp_path: Path) -> None:
    histories = list(simulate_histories(unshielded, RandomHeuristic(), [3, 4]))
    tables = [trace_table(seed, NAMES, *history) for seed, history in enumerate(histories)]
    write_trace(tmp_path / "trace.csv", tables)
    write_trace(tmp_path / "trace.parquet", tables)
    with (tmp_path / "trace.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * ROUNDS * DEVICES
    states, outcome = histories[1]
    row = rows[(ROUNDS + 7) * DEVICES + 4]
    assert (row["seed"], row["round"], row["device"]) == ("1", "7", "device-4")
    assert float(row["queue"]) == pytest.approx(states.queue[7, 4], rel=1e-5)
    assert float(row["energy_j"]) == pytest.approx(outcome.energy_j[7, 4], rel=1e-5)
    broken = {name for name in ("C1", "C2", "C3", "C4", "C5") if getattr(outcome.violations, name.lower())[7, 4]}
    assert set(row["violated"].split()) == broken
    assert any(row["violated"] for row in rows)
    parquet = pyarrow.parquet.read_table(tmp_path / "trace.parquet").to_pylist()
    assert list(parquet[0]) == list(rows[0])
    assert parquet[177]["energy_j"] == pytest.approx(float(rows[177]["energy_j"]), rel=1e-5)
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


@pytest.mark.parametrize("size", [1, DEVICES, pytest.param(60, marks=pytest.mark.slow)])
def test_figure_is_a_picture(size: int, tmp_path: Path) -> None:
    changes = {"shield.enabled": False, "fleet.size": size, "rounds": ROUNDS}
    system = build_system(load_scenario("paper", changes))
    states, outcome = next(simulate_histories(system, RandomHeuristic(), [3]))
    write_figure(tmp_path / "figure.png", "a title", [f"device-{n}" for n in range(size)], system, states, outcome)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def save(folder: Path, scenario: Scenario, seeds: tuple[int, ...] = (3, 4), **more) -> SavedSimulation:
    return simulate_to(folder, scenario, RandomHeuristic(), seeds, name="random", **more)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_results_are_written_to_a_folder(scenario: Scenario, tmp_path: Path) -> None:
    messages: list[str] = []
    saved = save(tmp_path / "a", scenario, on_progress=lambda progress: messages.append(progress.message))
    assert set(contents(tmp_path / "a")) == {"simulation.json", "scenario.yaml", "trace.csv", "figure.png"}
    assert json.loads((tmp_path / "a" / "simulation.json").read_text()) == saved.document
    assert saved.document["settings"] == {"train_chance": 0.5}
    assert load_scenario(tmp_path / "a" / "scenario.yaml") == scenario
    assert (saved.detailed, saved.trace_rows) == (True, 2 * ROUNDS * DEVICES)
    assert list(dict.fromkeys(messages)) == [
        "building the system",
        "simulating",
        "writing the figure",
        "writing the trace",
    ]


def test_results_of_an_earlier_simulation_are_replaced(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, scenario)
    save(tmp_path, scenario, trace="parquet")
    assert set(contents(tmp_path)) == {"simulation.json", "scenario.yaml", "trace.parquet", "figure.png"}
    monkeypatch.setattr(simulation_module, "MAX_TRACE_ROWS", 10)
    assert not save(tmp_path, scenario).detailed
    assert set(contents(tmp_path)) == {"simulation.json", "scenario.yaml"}


@pytest.mark.parametrize("left", [0, 20_000])  # the first file fails, or the figure
def test_a_full_disk_keeps_the_earlier_results(full, left: int, scenario: Scenario, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    save(folder, scenario)
    before = contents(folder)
    with full(left), pytest.raises(InputError, match=r"results: cannot be written \(.*\); .*\.$"):
        save(folder, scenario, seeds=(4, 3))
    assert contents(folder) == before
    save(folder, scenario, seeds=(4, 3))
    assert set(contents(folder)) == set(before)


def test_results_do_not_replace_a_link(scenario: Scenario, tmp_path: Path) -> None:
    save(tmp_path / "a", scenario)
    trace = (tmp_path / "a" / "trace.csv").rename(tmp_path / "elsewhere.csv")
    (tmp_path / "a" / "trace.csv").symlink_to(trace)
    before = contents(tmp_path / "a")
    with pytest.raises(InputError, match=r"trace\.csv: is not a regular file; move it away"):
        save(tmp_path / "a", scenario, seeds=(4, 3))
    assert contents(tmp_path / "a") == before
    assert (tmp_path / "a" / "trace.csv").is_symlink()


def test_names_may_have_dollar_signs(unshielded: System, tmp_path: Path) -> None:
    """Matplotlib reads what is between two of them as mathematics."""
    states, outcome = next(simulate_histories(unshielded, RandomHeuristic(), [3]))
    names = [f"$\\{name}$" for name in NAMES]
    write_figure(tmp_path / "figure.png", "a $\\frac$", names, unshielded, states, outcome)
    assert (tmp_path / "figure.png").exists()


def test_a_read_only_disk_is_refused_before_anything_is_simulated(
    read_only: Path, scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation_module, "simulate", None)
    with pytest.raises(InputError, match=r"new: cannot be written \(Read-only file system\); choose another folder"):
        save(read_only / "new", scenario)
