"""Export of a run: its networks, normalisation, fleet and front in one ``PolicyFile``. This module imports JAX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandem import __version__
from tandem.api import open_run
from tandem.errors import InputError
from tandem.feel.channel import RayleighChannel, RicianChannel, StaticChannel
from tandem.feel.observation import FLEET_FEATURES, device_constants, device_features
from tandem.feel.system import System
from tandem.feel.worst_case import WorstCase
from tandem.io.tree_io import flatten_arrays
from tandem.policy.networks import ActorCritic, DeepSetActorCritic, MLPActorCritic, RandomModeActorCritic
from tandem.policy.neural_policy import ObservationNormaliser, Sampling
from tandem.policy.running_stats import MAX_DEVIATION, RunningStats
from tandem.runs.front import Front
from tandem.runs.run import Run, SavedPolicies
from tandem.scenario import DeviceTable, Scenario, build_device_table
from tandem.scenario.plugins import ConstantArrivalsConfig, PoissonArrivalsConfig, TraceArrivalsConfig
from tandem.serving.policy_file import (
    DEVICE_COLUMNS,
    FORMAT,
    SYSTEM_FIELDS,
    TIMETABLE_COLUMNS,
    WORST_CASE_COLUMNS,
    PolicyFile,
    check_policy_file,
    fingerprint,
)

Arrays = dict[str, NDArray[Any]]
UNITS = {
    "queue": "requests",
    "data": "samples",
    "waited_s": "request-seconds",
    "last_gain": "1/W (h / sigma^2, the signal-to-noise ratio for one watt)",
    "power_w": "W",
    "frequency_hz": "Hz",
    "front.objectives": ["accuracy from 0 to 1", "latency in s", "energy in J"],
}


def export_run(run: Run | str | Path, fleet: tuple[Scenario, System] | None = None) -> PolicyFile:
    """Return the content of an export file for a finished run, or for the run in a folder.

    ``fleet`` is a scenario and its system that the policies fit, to decide for instead of those of the run.
    """
    if not isinstance(run, Run):
        run = open_run(run)
    scenario, system = (run.scenario, run.system()) if fleet is None else fleet
    policy, record = run.policy(0), run.record
    origin = {name: getattr(record, name) for name in ("algorithm", "preset", "seed", "created", "tandem")}
    return export_policies(
        scenario,
        system,
        run.saved,
        run.front,
        sampling=policy.sampling,
        largest_fleet=policy.largest_fleet,
        origin=origin,
        source=str(run.folder),
    )


def export_policies(
    scenario: Scenario,
    system: System,
    saved: SavedPolicies,
    front: Front,
    *,
    sampling: Sampling,
    largest_fleet: int | None,
    origin: Mapping[str, Any],
    source: str,
) -> PolicyFile:
    """Return the content of an export file for networks that were trained on a system.

    ``origin`` says where they are from; ``source`` is for messages.
    """
    network, random_modes = saved.network, False
    if isinstance(network, RandomModeActorCritic):
        network, random_modes = network.choices, True
    table, kind = build_device_table(scenario), _arrivals_kind(scenario)
    arrays = {
        **_network_arrays(network, source),
        **_normaliser_arrays(saved.normaliser),
        **_device_arrays(system, table, kind, scenario.shield.outage),
        **_worst_case_arrays(system.worst_case),
        "observation.constants": np.asarray(device_constants(system)),
        **_front_arrays(front),
    }
    metadata = {
        "format": FORMAT,
        "tandem": __version__,
        "run": dict(origin),
        "network": {
            "kind": "deep-set" if isinstance(network, DeepSetActorCritic) else "mlp",
            "conditioned": bool(getattr(network, "conditioned", False)),
            "random_modes": random_modes,
            "sampling": sampling,
            "largest_fleet": largest_fleet,
            "max_deviation": MAX_DEVIATION,
        },
        "observation": {
            "devices": list(device_features(system)),
            "constants": [f"log {name}" for name in (*DEVICE_COLUMNS[:4], "capacitance", "(switch_energy_j + 0.001)")]
            + ["log samples_per_request", "log (worst_gain power_max_w)", "log (worst_arrivals + 0.001)"],
            "fleet": list(FLEET_FEATURES),
        },
        "devices": table.names,
        "system": {
            **{name: float(getattr(system, name)) for name in SYSTEM_FIELDS},
            "shielded": system.shielded,
            "discards": system.discards,
        },
        "arrivals": kind,
        "fading_factor": _fading_factor(system, scenario.shield.outage),
        "tolerance": front.tolerance,
        "scenario": scenario.model_dump(mode="json"),
        "units": UNITS,
    }
    metadata["fingerprint"] = fingerprint(arrays, metadata)
    return check_policy_file(arrays, metadata, source)


def _network_arrays(network: ActorCritic, source: str) -> Arrays:
    """Return the weights of the actors. The critic, which only training needs, is left out."""
    if type(network) not in (DeepSetActorCritic, MLPActorCritic):
        raise InputError(
            f"{source}: its network {type(network).__name__} cannot be exported; train with the network deep-set or "
            "mlp."
        )
    arrays = flatten_arrays(network)
    return {f"network.{name}": array for name, array in arrays.items() if not name.startswith("critic.")}


def _normaliser_arrays(normaliser: ObservationNormaliser) -> Arrays:
    parts: dict[str, RunningStats] = {name: getattr(normaliser, name) for name in ("devices", "constants", "fleet")}
    arrays: Arrays = {}
    for name, stats in parts.items():
        arrays[f"normaliser.{name}.mean"] = np.asarray(stats.mean)
        arrays[f"normaliser.{name}.scale"] = _scale(stats)
    return arrays


def _scale(stats: RunningStats) -> NDArray[np.float32]:
    """Return 1 / standard deviation of each feature, as ``RunningStats.normalise``; 0 for one that never varied."""
    count, mean, squares = (np.asarray(part) for part in (stats.count, stats.mean, stats.squares))
    variance = np.where(count[:, None] > 0, squares / np.maximum(count, 1)[:, None], np.float32(1))
    varies = variance > np.float32(1e-12) * (1 + mean * mean)
    return np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1)), 0).astype(np.float32)


def _arrivals_kind(scenario: Scenario) -> str:
    """Return how arrivals are bounded: by their (peak) rate, by a Poisson quantile, or in an unknown way."""
    kinds = {ConstantArrivalsConfig: "constant", TraceArrivalsConfig: "constant", PoissonArrivalsConfig: "poisson"}
    return kinds.get(type(scenario.workload.arrivals), "other")


def _fading_factor(system: System, outage: float) -> float | None:
    """Return worst gain / mean gain, which is the same for all devices; None for recorded and other channels."""
    channel = system.channel
    if type(channel) not in (StaticChannel, RayleighChannel, RicianChannel):
        return None
    mean = np.asarray(channel.mean, np.float64)  # type: ignore[attr-defined]
    return float(np.median(channel.worst_gain(outage) / mean))


def _device_arrays(system: System, table: DeviceTable, kind: str, outage: float) -> Arrays:
    rate = system.arrivals.mean_rate()
    columns = {
        **{name: getattr(table, name) for name in (*DEVICE_COLUMNS, "distance_m", "shadowing_db")},
        "request_rate_per_s": rate,
        "peak_rate_per_s": system.arrivals.upper_quantile(1.0, outage) if kind == "constant" else rate,
        "worst_gain": system.channel.worst_gain(outage),
    }
    arrays: Arrays = {f"devices.{name}": np.asarray(column, np.float64) for name, column in columns.items()}
    return arrays | {"devices.group": np.asarray(table.groups, np.int32)}


def _worst_case_arrays(worst_case: WorstCase) -> Arrays:
    names = (*WORST_CASE_COLUMNS, *TIMETABLE_COLUMNS, "round_limit_s", "reserved")
    return {f"worst_case.{name}": np.asarray(getattr(worst_case, name)) for name in names}


def _front_arrays(front: Front) -> Arrays:
    return {
        "front.objectives": front.objectives,
        "front.rewards": front.points,
        "front.preferences": np.array([policy.preference for policy in front.policies], np.float64),
        "front.violation_rate": front.violation_rate,
        "front.violation_rates": np.array([policy.violation_rates for policy in front.policies], np.float64),
        "front.within_tolerance": front.counted,
        "front.network": np.array([policy.network for policy in front.policies], np.int32),
    }
