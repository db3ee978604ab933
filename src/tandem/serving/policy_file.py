"""The file that ``tandem export`` writes: everything that is needed to decide, in one safetensors file.

Its arrays and metadata are listed in docs/serving.md. The metadata are one JSON document under the key ``tandem``.
Reading a file needs NumPy and safetensors only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem.errors import InputError, short_repr
from tandem.io.array_file import Arrays, read_arrays, write_arrays
from tandem.objectives import NUM_OBJECTIVES

FORMAT = 1  # of the file; a reader refuses files of another format
NUM_CONSTRAINTS = 8
DEVICE_FEATURES = (
    *("last_train", "last_power", "last_frequency", "queue", "data"),
    *("data_age_s", "model_age_s", "waiting_s", "model_accuracy", "last_gain_db"),
)
MINIMAL_FEATURES = DEVICE_FEATURES[:5]
OUTPUTS = 5  # of a network for each device: mode logit, power and its scale, frequency and its scale
USED_OUTPUTS = (0, 1, 3)  # those that a deployed policy uses

# Columns of a device table, in double precision; ``feel.system.Devices`` has the first nine in single precision.
DEVICE_COLUMNS = (
    "training_cycles_per_sample",
    "inference_cycles_per_request",
    "frequency_min_hz",
    "frequency_max_hz",
    "power_min_w",
    "power_max_w",
    "capacitance",
    "switch_energy_j",
    "samples_per_request",
)
TABLE_COLUMNS = (*DEVICE_COLUMNS, "request_rate_per_s", "peak_rate_per_s", "distance_m", "shadowing_db", "worst_gain")
WORST_CASE_COLUMNS = ("worst_gain", "worst_arrivals", "queue_limit", "upload_s", "max_trainers", "max_data")
TIMETABLE_COLUMNS = ("period", "offset")
SYSTEM_FIELDS = (
    *("iterations", "update_bits", "bandwidth_hz", "round_max_s", "round_floor_s", "idle_round_s"),
    *("queue_max", "data_max", "pretrained_accuracy"),
)
NETWORK_KINDS = ("deep-set", "mlp")
SAMPLING_KINDS = ("deterministic", "sample-modes")
ARRIVAL_KINDS = ("constant", "poisson", "other")
_FIX = "export the run again with 'tandem export'"


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """The content of an export file, checked: shapes belong together and every number is finite."""

    arrays: Mapping[str, NDArray[Any]]  # by name
    metadata: dict[str, Any]
    source: str  # path of the file or of the run, for messages

    @property
    def version(self) -> str:
        """The fingerprint of the content, 16 hexadecimal digits: equal for equal content."""
        return str(self.metadata["fingerprint"])

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of the devices that the policy was trained for."""
        return tuple(self.metadata["devices"])

    @property
    def network(self) -> dict[str, Any]:
        """The metadata of the networks: kind, conditioned, random_modes, sampling, largest_fleet, width."""
        kind: dict[str, Any] = self.metadata["network"]
        return kind

    @property
    def fits_any_fleet(self) -> bool:
        """Whether the network can decide for a fleet of another size, or with other devices."""
        return bool(self.network["kind"] == "deep-set")

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the observed features of each device, in the order of the network's inputs."""
        return tuple(self.metadata["observation"]["devices"])

    def weights(self, network: int) -> dict[str, NDArray[np.float32]]:
        """Return the arrays of one network by name, such as ``encoder.layers.0.weight``."""
        prefix = "network."
        return {
            name.removeprefix(prefix): array[network] for name, array in self.arrays.items() if name.startswith(prefix)
        }

    def normaliser(self, network: int, part: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return mean and scale of a part of a network's inputs: devices, constants or fleet."""
        return self.arrays[f"normaliser.{part}.mean"][network], self.arrays[f"normaliser.{part}.scale"][network]


def fingerprint(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> str:
    """Hash the content of a file, without the fingerprint in its metadata."""
    digest = hashlib.sha256()
    plain = {name: value for name, value in metadata.items() if name != "fingerprint"}
    digest.update(json.dumps(plain, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def write_policy_file(path: str | Path, policy_file: PolicyFile) -> None:
    """Write an export file atomically and durably; equal content gives equal bytes."""
    arrays: Arrays = {name: np.asarray(array, order="C") for name, array in policy_file.arrays.items()}
    write_arrays(Path(path), arrays, policy_file.metadata, durable=True)


def read_policy_file(path: str | Path) -> PolicyFile:
    """Read and check an export file. Raises InputError with the file, the field and the fix if it cannot be used."""
    arrays, metadata = read_arrays(Path(path), _FIX)
    return check_policy_file(arrays, metadata, str(path))


def check_policy_file(arrays: Arrays, metadata: Any, source: str) -> PolicyFile:
    """Check the content of a file. Raises InputError with the source, the field and the fix if it cannot be used."""
    if not isinstance(metadata, dict) or not isinstance(metadata.get("format"), int):
        raise InputError(f"{source}: is not an export of a run; {_FIX}.")
    if metadata["format"] != FORMAT:
        raise InputError(
            f"{source}: format is {metadata['format']} and this version of Tandem reads {FORMAT}; {_FIX} of this "
            "version."
        )
    _check_metadata(metadata, source)
    _check_shapes(arrays, metadata, source)
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InputError(f"{source}: {name} holds numbers that are not finite; {_FIX}.")
    _check_ranges(arrays, metadata, source)
    if metadata["fingerprint"] != fingerprint(arrays, metadata):
        raise InputError(f"{source}: fingerprint does not match the content, so the file is damaged; {_FIX}.")
    return PolicyFile(arrays, metadata, source)


def _check_metadata(metadata: dict[str, Any], source: str) -> None:
    """Check the fields that the arrays are checked against, and those that decisions depend on."""

    def require(place: str, value: Any, valid: bool, wanted: str) -> None:
        if not valid:
            raise InputError(f"{source}: {place} is {short_repr(value)} where {wanted} is needed; {_FIX}.")

    def section(name: str) -> dict[str, Any]:
        value = metadata.get(name)
        require(name, value, isinstance(value, dict), "an object")
        assert isinstance(value, dict)
        return value

    network, observation, system = section("network"), section("observation"), section("system")
    require("network.kind", network.get("kind"), network.get("kind") in NETWORK_KINDS, " or ".join(NETWORK_KINDS))
    sampling = network.get("sampling")
    require("network.sampling", sampling, sampling in SAMPLING_KINDS, " or ".join(SAMPLING_KINDS))
    for name in ("conditioned", "random_modes"):
        require(f"network.{name}", network.get(name), isinstance(network.get(name), bool), "true or false")
    largest = network.get("largest_fleet")
    require("network.largest_fleet", largest, largest is None or _is_count(largest), "a whole number or null")
    features = observation.get("devices")
    known = features in (list(DEVICE_FEATURES), list(MINIMAL_FEATURES))
    require("observation.devices", features, known, "the full or the minimal list of features")
    names = metadata.get("devices")
    listed = isinstance(names, list) and all(isinstance(name, str) and name for name in names)
    different = isinstance(names, list) and listed and len(names) == len(set(names)) > 0
    require("devices", names, different, "a list of different names")
    for name in SYSTEM_FIELDS:
        value = system.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool) and np.isfinite(value) and value >= 0
        require(f"system.{name}", value, bool(number), "a number of 0 or more")
    for name in ("shielded", "discards"):
        require(f"system.{name}", system.get(name), isinstance(system.get(name), bool), "true or false")
    arrivals, factor = metadata.get("arrivals"), metadata.get("fading_factor")
    require("arrivals", arrivals, arrivals in ARRIVAL_KINDS, ", ".join(ARRIVAL_KINDS))
    require("fading_factor", factor, factor is None or (isinstance(factor, float) and factor > 0), "a number or null")
    require("scenario", metadata.get("scenario"), isinstance(metadata.get("scenario"), dict), "an object")
    require("fingerprint", metadata.get("fingerprint"), isinstance(metadata.get("fingerprint"), str), "text")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_shapes(arrays: Arrays, metadata: dict[str, Any], source: str) -> None:
    expected = _expected_arrays(arrays, metadata)
    for name in (*expected, *arrays):
        if name not in arrays or name not in expected:
            problem = "is missing" if name not in arrays else "is not an array of this format"
            raise InputError(f"{source}: {name} {problem}; {_FIX}.")
        array, (dtype, shape) = arrays[name], expected[name]
        if array.dtype != np.dtype(dtype) or array.shape != shape:
            raise InputError(
                f"{source}: {name} is {array.dtype}{list(array.shape)} where {np.dtype(dtype)}{list(shape)} is needed; "
                f"{_FIX}."
            )


def _expected_arrays(arrays: Arrays, metadata: dict[str, Any]) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Return type and shape of every array. The numbers of networks and policies follow from two of the arrays."""

    def length(name: str, axis: int = 0) -> int:
        return arrays[name].shape[axis] if name in arrays and arrays[name].ndim > axis else 1

    size, features = len(metadata["devices"]), len(metadata["observation"]["devices"])
    networks, policies = length("normaliser.fleet.mean"), length("front.objectives")
    preference = NUM_OBJECTIVES if metadata["network"]["conditioned"] else 0
    constants = len(DEVICE_COLUMNS)
    if metadata["network"]["kind"] == "deep-set":
        width = length("network.encoder.layers.0.bias", 1)
        layers = {
            "encoder.layers.0": (features + constants + preference, width),
            "encoder.layers.1": (width, width),
            "context.layers.0": (2 * width + 1 + preference, width),
            "context.layers.1": (width, width),
            "head.layers.0": (2 * width, width),
            "head.layers.1": (width, OUTPUTS),
        }
    else:
        width = length("network.actor.layers.0.bias", 1)
        sizes = (size * features + 1, width, width, width, width, size * OUTPUTS)
        layers = {f"actor.layers.{n}": (sizes[n], sizes[n + 1]) for n in range(5)}
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {}
    for name, (inputs, outputs) in layers.items():
        expected[f"network.{name}.weight"] = (np.float32, (networks, outputs, inputs))
        expected[f"network.{name}.bias"] = (np.float32, (networks, outputs))
    for part, count in (("devices", features), ("constants", constants), ("fleet", 1)):
        for name in ("mean", "scale"):
            expected[f"normaliser.{part}.{name}"] = (np.float32, (networks, count))
    expected |= {f"devices.{name}": (np.float64, (size,)) for name in TABLE_COLUMNS}
    expected["devices.group"] = (np.int32, (size,))
    expected["observation.constants"] = (np.float32, (size, constants))
    expected |= {f"worst_case.{name}": (np.float32, (size,)) for name in WORST_CASE_COLUMNS}
    expected |= {f"worst_case.{name}": (np.int32, (size,)) for name in TIMETABLE_COLUMNS}
    expected |= {"worst_case.round_limit_s": (np.float32, ()), "worst_case.reserved": (np.int32, ())}
    for name in ("objectives", "rewards", "preferences"):
        expected[f"front.{name}"] = (np.float64, (policies, NUM_OBJECTIVES))
    expected["front.violation_rate"] = (np.float64, (policies,))
    expected["front.violation_rates"] = (np.float64, (policies, NUM_CONSTRAINTS))
    expected["front.within_tolerance"] = (np.bool_, (policies,))
    expected["front.network"] = (np.int32, (policies,))
    return expected


def _check_ranges(arrays: Arrays, metadata: dict[str, Any], source: str) -> None:
    def refuse(name: str, problem: str, wrong: NDArray[np.bool_]) -> None:
        if wrong.any():
            raise InputError(f"{source}: {name} {problem}; {_FIX}.")

    networks = arrays["normaliser.fleet.mean"].shape[0]
    owner = arrays["front.network"]
    refuse("front.network", "names a network that the file does not hold", (owner < 0) | (owner >= networks))
    refuse("front.objectives", "has no policy", np.asarray(len(owner) == 0))
    refuse("worst_case.period", "is below 1", arrays["worst_case.period"] < 1)
    refuse("front.preferences", "has a negative weight or only zeros", _not_weights(arrays["front.preferences"]))
    for name in ("training_cycles_per_sample", "inference_cycles_per_request", "frequency_max_hz", "capacitance"):
        refuse(f"devices.{name}", "is not above 0", arrays[f"devices.{name}"] <= 0)
    for quantity in ("frequency", "power"):
        unit = "hz" if quantity == "frequency" else "w"
        low, high = (arrays[f"devices.{quantity}_{end}_{unit}"] for end in ("min", "max"))
        refuse(f"devices.{quantity}_min_{unit}", "is negative or above the maximum", (low < 0) | (low > high))
    for name in ("devices.worst_gain", "worst_case.worst_gain", "worst_case.upload_s"):
        refuse(name, "is not above 0", arrays[name] <= 0)


def _not_weights(weights: NDArray[np.float64]) -> NDArray[np.bool_]:
    return np.asarray((weights < 0).any(axis=1) | (weights.sum(axis=1) <= 0))
