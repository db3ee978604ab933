"""Fits recover the constants of made-up data, and the commands calibrate, pretrain and simulate on a task."""

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.cli.main import main
from tandem.federated.build import build_system
from tandem.federated.calibration import driver
from tandem.federated.calibration.cache import MeasurementCache
from tandem.federated.calibration.driver import SO_FAR, calibrate, measurement_id, write_calibration
from tandem.federated.calibration.fit import FitQuality, fit_all, fit_decay
from tandem.federated.calibration.grid import DATA_AGES_S, MODEL_AGES_S, VOLUMES, Measurements, measure, plan_for
from tandem.federated.simulation import FederatedSimulation
from tandem.feel.accuracy import MAPPINGS, AccuracyMapping, mappings_by_kind
from tandem.feel.system import System
from tandem.scenario import load_scenario
from tandem.scenario.plugins import AccuracyMappingConfig

COMMAND = [sys.executable, "-m", "tandem"]
CONSTANTS = {
    "log-exponential": (0.08, 3.0, 0.006),
    "power-law-exponential": (0.4, 0.1, 0.004),
    "log-rational": (0.1, 1.0, 0.01),
}


def measurements(accuracy: Any) -> Measurements:
    accuracy = np.asarray(accuracy)
    x, y, age = (np.asarray(values, np.float64) for values in (VOLUMES, DATA_AGES_S, MODEL_AGES_S))
    return Measurements(x, y, age, accuracy, np.zeros_like(accuracy), pretrained=0.9)


def grids() -> list[Any]:
    axes = [np.asarray(values, np.float64) for values in (VOLUMES, DATA_AGES_S, MODEL_AGES_S)]
    return list(np.meshgrid(*axes, indexing="ij"))


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_fit_recovers_the_constants_of_the_data(kind: str) -> None:
    k1, k2, k3 = CONSTANTS[kind]
    x, y, age = grids()
    accuracy = mappings_by_kind()[kind].formula(np, x, y, k1, k2, k3) * np.exp(-0.003 * age)
    fits = fit_all(measurements(accuracy))
    assert fits[0].kind == kind
    np.testing.assert_allclose(fits[0].kappa, (k1, k2, k3), rtol=1e-3)
    assert fits[0].decay_per_s == pytest.approx(0.003, rel=1e-3)
    assert fits[0].device.r2 > 0.9999
    assert {fit.kind for fit in fits} == set(CONSTANTS)
    assert fits[0].device.rmse <= fits[1].device.rmse <= fits[2].device.rmse


@pytest.mark.parametrize("kind", CONSTANTS)
def test_a_formula_is_the_same_in_numpy_and_in_jax(kind: str) -> None:
    constants = CONSTANTS[kind]
    mapping = mappings_by_kind()[kind]
    x, y = np.array([1.0, 37.0, 800.0]), np.array([1.0, 12.0, 90.0])
    simulated = jax.vmap(mapping(*(jnp.asarray(k) for k in constants)))(jnp.asarray(x), jnp.asarray(y))
    np.testing.assert_allclose(simulated, mapping.formula(np, x, y, *constants), rtol=1e-5)


class Saturating(AccuracyMapping):
    """A mapping that is not ours: G(x, y) = k1 (1 - exp(-k2 x)) exp(-k3 y)."""

    max_k2 = 10.0

    @staticmethod
    def formula(xp: Any, x: Any, y: Any, k1: Any, k2: Any, k3: Any) -> Any:
        return k1 * (1 - xp.exp(-k2 * x)) * xp.exp(-k3 * y)


@pytest.fixture
def saturating(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Register a mapping of a user, and forget it again."""
    before = dict(AccuracyMappingConfig.choices)

    class SaturatingConfig(AccuracyMappingConfig):
        kind: Literal["saturating"] = "saturating"

    monkeypatch.setitem(MAPPINGS, SaturatingConfig, Saturating)
    yield "saturating"
    AccuracyMappingConfig.choices.clear()
    AccuracyMappingConfig.choices.update(before)


def test_a_mapping_of_a_user_is_calibrated_like_ours(
    saturating: str, digits_system: System, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y, age = grids()
    made = measurements(0.9 * (1 - np.exp(-0.02 * x)) * np.exp(-0.004 * y) * np.exp(-0.003 * age))
    monkeypatch.setattr(driver, "measure", lambda *arguments, **options: made)
    scenario = load_scenario("paper", {"accuracy.task": "digits", "fleet.size": 5})
    calibration = calibrate(scenario, digits_system, worlds=1, rounds=9, mapping=saturating)
    assert {fit.kind for fit in calibration.fits} == {saturating, *CONSTANTS}
    assert calibration.fits[0] == calibration.chosen
    np.testing.assert_allclose(calibration.chosen.kappa, (0.9, 0.02, 0.004), rtol=1e-3)
    write_calibration(tmp_path, calibration)
    for name in ("scenario", saturating):
        calibrated = load_scenario(tmp_path / f"{name}.yaml")
        assert calibrated.accuracy.mapping.kind == saturating
        assert isinstance(build_system(calibrated).accuracy_mapping, Saturating)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 10_000))
def test_any_measurement_gives_constants_a_scenario_may_have(seed: int) -> None:
    accuracy = np.random.default_rng(seed).uniform(0, 1, (len(VOLUMES), len(DATA_AGES_S), len(MODEL_AGES_S)))
    for fit in fit_all(measurements(accuracy)):
        changes = {"accuracy.mapping": {"kind": fit.kind, "kappa": list(fit.kappa)}}
        assert load_scenario("paper", {**changes, "accuracy.model_decay_per_s": fit.decay_per_s})
        assert np.isfinite(fit.device.rmse)


def test_fit_quality_of_a_worked_example() -> None:
    found = FitQuality.from_residuals(np.array([0.0, 1.0]), np.array([0.0, 0.5]))
    assert found.rmse == pytest.approx(np.sqrt(0.125))
    assert found.r2 == pytest.approx(1 - 0.125 / 0.25)
    assert fit_decay(measurements(np.full((7, 5, 6), 0.5))) == pytest.approx(0, abs=1e-6)


@pytest.fixture
def tandem(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> Callable[..., tuple[int, str, str]]:
    """The command in this process: exit code, stdout, stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["tandem", *arguments])
        try:
            main()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code
        captured = capsys.readouterr()
        return int(code or 0), captured.out, captured.err

    return run


# One compiled program for all measurements: five devices, two worlds of nine rounds, and the same largest volume.
SHORT = ("--worlds", "2", "--rounds", "9", "--set", "fleet.size=5")


def test_calibrate_writes_scenarios_that_can_be_used(tandem: Any, tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    (tmp_path / "found" / SO_FAR).write_text("{}")  # left by a killed calibration: removed in the end
    code, out, err = tandem("calibrate", "--task", "digits", *SHORT, "--json", "--out", "found", "--seed", "3")
    assert code == 0, err
    document = json.loads(out)
    assert document["chosen"] == document["fits"][0]["kind"]
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "calibration.json",
        "calibration.png",
        "measurements.csv",
        "scenario.yaml",
        *(f"{kind}.yaml" for kind in CONSTANTS),
    }
    for name in ("scenario", *CONSTANTS):
        scenario = load_scenario(tmp_path / "found" / f"{name}.yaml")
        assert scenario.accuracy.task is None
        build_system(scenario)
    fit = next(fit for fit in document["fits"] if fit["kind"] == "log-rational")
    rational = load_scenario(tmp_path / "found" / "log-rational.yaml").accuracy
    assert list(rational.mapping.kappa) == fit["kappa"]
    assert rational.model_decay_per_s == fit["model_decay_per_s"]
    with (tmp_path / "found" / "measurements.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(VOLUMES) * len(DATA_AGES_S) * len(MODEL_AGES_S)


@pytest.mark.slow
def test_an_interrupted_calibration_leaves_no_partial_files(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "calibrate", "--worlds", "1000", "--out", "found"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stderr is not None
    while "Measuring" not in process.stderr.readline():
        assert process.poll() is None
    for _ in range(10):  # Python loses an interruption that falls into a callback of the garbage collector
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)
            break
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert list((tmp_path / "found").iterdir()) == []


@pytest.fixture
def simulation(digits_system: System) -> FederatedSimulation:
    assert isinstance(digits_system.measured_accuracy, FederatedSimulation)
    return digits_system.measured_accuracy


def test_a_killed_measurement_continues_where_it_stopped(tmp_path: Path, simulation: FederatedSimulation) -> None:
    plan = plan_for(simulation, 5, round_s=2.5, max_samples=max(VOLUMES), rounds=9)
    grid: dict[str, Any] = {"worlds": 2, "seed": 0, "volumes": (8, 16), "data_ages_s": (1.0, 5.0)}
    whole = measure(simulation, plan, **grid)
    path = tmp_path / "so-far.json"

    def dies(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(simulation, plan, **grid, on_progress=dies, cache=MeasurementCache(path, "this"))
    kept = MeasurementCache(path, "this")
    measured_again: list[Any] = []
    kept.add, add = lambda *cell: (measured_again.append(cell[0]), add(*cell)), kept.add  # type: ignore[method-assign]
    resumed = measure(simulation, plan, **grid, cache=kept)
    assert measured_again == [(16, 5.0)]
    np.testing.assert_array_equal(resumed.accuracy, whole.accuracy)
    np.testing.assert_array_equal(resumed.standard_error, whole.standard_error)
    assert MeasurementCache(path, "that").get((8, 1.0)) is None  # of another measurement
    path.write_text('{"title": "this", "cel')
    assert MeasurementCache(path, "this").get((8, 1.0)) is None


def test_an_interrupted_calibration_keeps_finished_cells(tmp_path: Path, digits_system: System) -> None:
    def dies(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    scenario = load_scenario("paper", {"accuracy.task": "digits", "fleet.size": 5})
    with pytest.raises(KeyboardInterrupt):
        calibrate(scenario, digits_system, worlds=2, rounds=9, on_progress=dies, folder=tmp_path)
    assert list(json.loads((tmp_path / SO_FAR).read_text())["cells"]) == [str((VOLUMES[0], DATA_AGES_S[0]))]


def test_a_measurement_is_identified_by_everything_it_depends_on(simulation: FederatedSimulation) -> None:
    scenario, how = load_scenario("paper"), {"seed": 0}
    other = load_scenario("paper", {"fleet.size": 4})
    weights = eqx.tree_at(lambda s: s.model.head.bias, simulation, simulation.model.head.bias + 1)
    cases = [(scenario, simulation, how), (other, simulation, how), (scenario, weights, how)]
    cases.append((scenario, simulation, {"seed": 1}))
    ids = [measurement_id(*case) for case in cases]
    assert len(set(ids)) == 4
    assert ids[0] == measurement_id(scenario, simulation, how)


@pytest.mark.slow
def test_simulate_compares_the_estimate_with_the_measured_accuracy(tandem: Any, tmp_path: Path) -> None:
    arguments = ("--task", "digits", "--rounds", "8", "--seeds", "2", "--set", "fleet.size=5")
    code, out, err = tandem("simulate", "paper", *arguments, "--json", "--out", "s")
    assert code == 0, err
    document = json.loads(out)
    found = document["estimated_accuracy"]
    assert document["task"] == "digits"
    with (tmp_path / "s" / "trace.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["train"] == "0" and float(row["served"]) >= 1]
    measured, estimated = (np.array([float(row[name]) for row in rows]) for name in ("accuracy", "estimated_accuracy"))
    assert found["rounds"] == len(rows)
    assert found["measured"] == pytest.approx(measured.mean(), abs=1e-4)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((measured - estimated) ** 2)), abs=1e-4)
    assert (tmp_path / "s" / "accuracy.png").exists()


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (("calibrate", "--task", "digit"), ("--task digit", "digits")),
        (("calibrate", "--task", "cifar10"), ("--task cifar10", "--data")),
        (("calibrate", "--mapping", "linear"), ("--mapping linear", "log-rational")),
        (("simulate", "--data", "here"), ("--data here", "--task")),
        (("pretrain", "cifar10", "--data", "nowhere"), ("nowhere", "accuracy.task.path")),
        (("reproduce", "top3", "--task", "digit"), ("--task digit", "digits")),
        (("reproduce", "devices", "--task", "digits"), ("devices", "task")),
        (("reproduce", "top3", "--task", "cifar10", "--data", "x"), ("--task cifar10", "cpu", "smoke", "full")),
        (("simulate", "--set", "accuracy.task=digits", "--set", "accuracy.task.drift.shared=2"), ("shared", "2", "1")),
    ],
)
def test_a_mistake_is_reported_in_one_line_and_leaves_no_files(
    arguments: tuple[str, ...], facts: tuple[str, ...], tandem: Any, tmp_path: Path
) -> None:
    code, out, err = tandem(*arguments)
    assert (code, out) == (2, "")
    last = err.strip().splitlines()[-1]
    assert [fact for fact in facts if fact not in last] == []
    assert list(tmp_path.iterdir()) == []


def test_pretrain_reports_the_accuracy_of_the_model(tandem: Any, tmp_path: Path) -> None:
    code, out, err = tandem("pretrain", "digits", "--epochs", "30", "--out", "m.safetensors", "--json")
    assert code == 0, err
    document = json.loads(out)
    assert document["accuracy"] > 0.85
    assert document["weights"] == 2410
    used = build_system(load_scenario("paper", ["accuracy.task={kind: digits, pretrained_path: m.safetensors}"]))
    assert float(used.measured_accuracy.accuracy) == pytest.approx(document["accuracy"])
