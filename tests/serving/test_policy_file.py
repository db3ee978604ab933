"""The export file: written atomically, equal bytes for equal content, and refused with a sentence if it is damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import Case, make_report
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from tandem.cli.main import app
from tandem.errors import InputError
from tandem.runs import Run
from tandem.serving import Fleet, Scheduler, read_policy_file, write_policy_file
from tandem.serving.numpy_policy import COLUMNS, build_policy, device_constants, observe
from tandem.serving.onnx_export import build_onnx

Arrays = dict[str, np.ndarray]


def test_content_is_read_back(case: Case, policy_path: Path) -> None:
    again = read_policy_file(policy_path)
    assert again.metadata == json.loads(json.dumps(case.file.metadata))
    assert again.arrays.keys() == case.file.arrays.keys()
    for name, array in again.arrays.items():
        np.testing.assert_array_equal(array, case.file.arrays[name])
        assert array.dtype == case.file.arrays[name].dtype
    first = policy_path.read_bytes()
    write_policy_file(policy_path, again)
    assert policy_path.read_bytes() == first


def set_weight(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["network.head.layers.1.weight"][0, 0, 0] = np.nan


def set_gain(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["worst_case.worst_gain"][3] = 0


def flip(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["network.head.layers.1.weight"][0, 0, 0] += 1


def drop(arrays: Arrays, note: dict[str, Any]) -> None:
    del arrays["normaliser.fleet.scale"]


def narrow(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["devices.power_max_w"] = arrays["devices.power_max_w"][:-1]


def swap(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["devices.power_max_w"], arrays["devices.power_min_w"] = (
        arrays["devices.power_min_w"],
        arrays["devices.power_max_w"],
    )


def point_nowhere(arrays: Arrays, note: dict[str, Any]) -> None:
    arrays["front.network"][:] = 5


def set_note(*path: str, to: Any) -> Callable[[Arrays, dict[str, Any]], None]:
    def change(arrays: Arrays, note: dict[str, Any]) -> None:
        for name in path[:-1]:
            note = note[name]
        note[path[-1]] = to

    return change


DAMAGES: list[tuple[Callable[[Arrays, dict[str, Any]], None], str]] = [
    (set_weight, r"network\.head\.layers\.1\.weight holds numbers that are not finite; export the run again"),
    (set_gain, r"worst_case\.worst_gain is not above 0"),
    (flip, r"fingerprint does not match the content"),
    (drop, r"normaliser\.fleet\.scale is missing"),
    (narrow, r"devices\.power_max_w is float64\[9\] where float64\[10\] is needed"),
    (swap, r"devices\.power_min_w is negative or above the maximum"),
    (point_nowhere, r"front\.network names a network that the file does not hold"),
    (set_note("format", to=2), r"format is 2 and this version of Tandem reads 1; export the run again"),
    (set_note("format", to=None), r"is not an export of a run"),
    (set_note("network", "kind", to="transformer"), r"network\.kind is 'transformer' where deep-set or mlp is needed"),
    (set_note("network", "largest_fleet", to=-3), r"network\.largest_fleet is -3"),
    (set_note("system", "queue_max", to=True), r"system\.queue_max is true where a number of 0 or more"),
    (set_note("system", to=None), r"system is empty where an object is needed"),
    (set_note("devices", to=["a"] * 10), r"devices is .* where a list of different names"),
    (set_note("observation", "devices", to=["queue"]), r"observation\.devices is \['queue'\]"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_file_is_refused(
    policy_path: Path, damage: Callable[[Arrays, dict[str, Any]], None], message: str
) -> None:
    note = read_policy_file(policy_path).metadata
    arrays = {name: array.copy() for name, array in load_file(policy_path).items()}
    damage(arrays, note)
    save_file(arrays, policy_path, {"tandem": json.dumps(note)})
    with pytest.raises(InputError, match=message) as error:
        read_policy_file(policy_path)
    assert str(error.value).startswith(f"{policy_path}: ")


def test_file_cut_anywhere_is_refused(policy_path: Path) -> None:
    whole = policy_path.read_bytes()
    for kept in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
        policy_path.write_bytes(whole[:kept])
        with pytest.raises(InputError, match="is cut short or damaged; export the run again"):
            read_policy_file(policy_path)
    policy_path.unlink()
    with pytest.raises(InputError, match="is missing"):
        read_policy_file(policy_path)


def test_export_command_writes_both_files(conditioned_run: Run, population_run: Run, tmp_path: Path) -> None:
    out, model = tmp_path / "policy.safetensors", tmp_path / "network.onnx"
    arguments = ["export", str(conditioned_run.folder), "--out", str(out), "--onnx", str(model), "--json"]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["version"] == read_policy_file(out).version
    assert document["policies"] == len(conditioned_run.front.policies)
    assert model.stat().st_size > 1000
    several = ["export", str(population_run.folder), "--out", str(out), "--onnx", str(model)]
    with pytest.raises(InputError, match=r"the run has \d+ networks; choose a policy of its front with --policy"):
        CliRunner().invoke(app, several, catch_exceptions=False)
    CliRunner().invoke(app, [*several, "--policy", "0"], catch_exceptions=False)
    assert Scheduler(read_policy_file(out)).policy_file.network["random_modes"]


@pytest.mark.parametrize("kind", ["case", "fixed_case"])
def test_onnx_model_is_the_network(kind: str, request: pytest.FixtureRequest) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    case: Case = request.getfixturevalue(kind)
    session = onnxruntime.InferenceSession(
        build_onnx(case.file, 0).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    scheduler = Scheduler(case.file)
    sizes = (10, 1, 3, 8, 9) if kind == "case" else (10,)
    for size in sizes:
        fleet = scheduler.fleet.take(np.arange(size)) if size < 10 else scheduler.fleet
        preference = np.array([0.5, 0.2, 0.3], np.float32)
        policy = build_policy(case.file, 0, preference, fleet)
        for seed in range(20):
            report = make_report(case.file, fleet.names, seed=seed)
            columns = np.array([getattr(report, name) for name in COLUMNS], np.float32)
            given = {"devices": features_of(fleet, columns).T.copy(), "fleet": np.array([2.5], np.float32)}
            if kind == "case":
                given |= {"constants": device_constants(fleet), "preference": preference}
            mode_logit, power, frequency = session.run(None, given)
            output = policy.forward(*policy.normalise(observe(policy.constants, columns), 2.5))
            np.testing.assert_allclose(mode_logit, output[0], atol=1e-5)
            for found, logit in zip((power, frequency), output[1:], strict=True):
                squashed = np.clip(1.2 / (1 + np.exp(-logit.astype(np.float64))) - 0.1, 0, 1)
                np.testing.assert_allclose(found, squashed, atol=1e-5)


def features_of(fleet: Fleet, columns: np.ndarray) -> np.ndarray:
    """The features by their definition, from the columns of a report, [features, devices]."""
    features, devices = columns.astype(np.float64), fleet.devices
    features[1] = (features[1] - devices.power_min_w) / (devices.power_max_w - devices.power_min_w)
    features[2] = (features[2] - devices.frequency_min_hz) / (devices.frequency_max_hz - devices.frequency_min_hz)
    features[7] = np.where(features[3] > 0, features[7] / np.maximum(features[3], 1e-9), 0)
    features[9] = 10 * np.log10(features[9])
    return features.astype(np.float32)
