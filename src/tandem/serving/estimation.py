"""Estimates of a fleet from its recorded rounds: request rates, channel gains and computing times, for each device.

Every estimate has a 95 % confidence interval. A value of the scenario is replaced only if the recorded rounds
contradict it, so that a fleet which has not changed keeps its scenario.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from tandem.errors import InputError
from tandem.feel.path_loss import mean_gain, noise_dbw
from tandem.scenario import DeviceTable, Scenario, build_device_table
from tandem.scenario.plugins import ConstantArrivalsConfig, PoissonArrivalsConfig, TraceFadingConfig
from tandem.serving.storage import StoredRound

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]

MIN_ROUNDS = 30  # an estimate of fewer rounds is not used, and a window is not divided further
MIN_CHANGE = 0.02  # smaller relative changes are ignored: they hardly affect a policy
SIGNIFICANCE = 1e-3  # probability that a fleet which has not changed is taken for one that has
_CONFIDENCE = 0.95
# The quantities, and the units in which reports of the tuner give them.
QUANTITIES = {
    "request_rate_per_s": "1/s",
    "gain": "1/W",
    "training_cycles_per_sample": "cycles",
    "inference_cycles_per_request": "cycles",
}


@dataclass(frozen=True, eq=False)
class Recording:
    """Recorded rounds as arrays, [rounds, devices]; NaN where nothing was recorded."""

    names: tuple[str, ...]
    rounds: NDArray[np.int64]  # numbers of the rounds, ascending
    duration_s: Column  # [rounds]
    train: Flags
    frequency_hz: Column
    queue: Column
    data: Column
    arrived: Column  # requests
    gain: Column  # h / sigma^2
    compute_s: Column  # time of training or of inference

    def __len__(self) -> int:
        return len(self.rounds)

    def part(self, which: slice) -> Recording:
        """Return some of the rounds."""
        names = [field.name for field in fields(self) if field.name != "names"]
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@dataclass(frozen=True, eq=False)
class Estimate:
    """The mean of a quantity of each device, beside the value that the scenario assumes."""

    value: Column  # NaN for a device without recorded values
    half_width: Column  # of the 95 % confidence interval
    rounds: NDArray[np.int64]  # rounds in which the quantity was recorded
    assumed: Column
    changed: Flags  # whether the recorded rounds contradict the assumed value

    @property
    def used(self) -> Column:
        """The estimate where it contradicts the scenario, else the value of the scenario."""
        return np.where(self.changed, self.value, self.assumed)

    def document(self, names: Sequence[str], unit: str) -> dict[str, Any]:
        """Return a JSON document: how many devices changed, and the estimates of these."""
        which = np.flatnonzero(self.changed)
        return {
            "unit": unit,
            "recorded_devices": int((self.rounds >= MIN_ROUNDS).sum()),
            "changed_devices": len(which),
            "changed": [
                {
                    "device": names[n],
                    "assumed": float(self.assumed[n]),
                    "estimate": float(self.value[n]),
                    "interval_95": [
                        float(self.value[n] - self.half_width[n]),
                        float(self.value[n] + self.half_width[n]),
                    ],
                    "rounds": int(self.rounds[n]),
                }
                for n in which.tolist()
            ],
        }


@dataclass(frozen=True, eq=False)
class FleetEstimate:
    """What the recorded rounds say about a fleet."""

    recording: Recording  # the rounds that were used
    quantities: Mapping[str, Estimate]  # by name, see QUANTITIES

    @property
    def changed(self) -> bool:
        """Whether any value of the scenario is contradicted."""
        return any(bool(each.changed.any()) for each in self.quantities.values())

    def document(self) -> dict[str, Any]:
        """Return the estimates as a JSON document."""
        used = self.recording
        return {
            "rounds": len(used),
            "first_round": int(used.rounds[0]),
            "last_round": int(used.rounds[-1]),
            **{name: self.quantities[name].document(used.names, unit) for name, unit in QUANTITIES.items()},
        }


def read_recording(rounds: Sequence[StoredRound], names: Sequence[str], queue_max: float) -> Recording:
    """Read reports, decisions and outcomes of stored rounds, oldest first, for the devices in ``names``.

    What an outcome does not give is taken from the report of the next round, if possible: its duration, the gains, and
    the requests that arrived, which are those in the queue of a device that served.
    """
    index = {name: n for n, name in enumerate(names)}
    shape = (len(rounds), len(names))
    columns = {name: np.full(shape, np.nan) for name in ("queue", "data", "arrived", "gain", "compute_s")}
    columns["frequency_hz"] = np.full(shape, np.nan)
    train, duration_s = np.zeros(shape, bool), np.full(len(rounds), np.nan)
    reports = [json.loads(each.report) for each in rounds]
    for row, (stored, report) in enumerate(zip(rounds, reports, strict=True)):
        decision = json.loads(stored.decision)
        outcome = {} if stored.outcome is None else json.loads(stored.outcome)
        consecutive = row + 1 < len(rounds) and rounds[row + 1].round == stored.round + 1
        after = reports[row + 1] if consecutive else {}

        def fill(name: str, document: Mapping[str, Any], column: str, row: int = row) -> None:
            _fill(columns[name][row], index, document, column)

        fill("queue", report, "queue")
        fill("data", report, "data")
        fill("frequency_hz", decision, "frequency_hz")
        modes = dict(zip(decision["devices"], decision["mode"], strict=True))
        train[row] = [modes.get(name) == "train" for name in names]
        known = outcome.get("duration_s", after.get("last_duration_s"))
        duration_s[row] = np.nan if known is None else known

        fill("gain", after, "last_gain")
        fill("gain", outcome, "gain")
        following = np.full(len(names), np.nan)
        _fill(following, index, after, "queue")
        # A queue at its limit may have dropped requests.
        inferred = np.where(following < queue_max, following - np.where(train[row], columns["queue"][row], 0), np.nan)
        columns["arrived"][row] = np.where(inferred >= 0, inferred, np.nan)
        fill("arrived", outcome, "requests_arrived")
        fill("compute_s", outcome, "compute_s")
        for name in outcome.get("late", ()):  # it did not do what was decided
            if name in index:
                columns["compute_s"][row, index[name]] = np.nan
    columns["gain"][columns["gain"] <= 0] = np.nan
    return Recording(tuple(names), np.array([each.round for each in rounds], np.int64), duration_s, train, **columns)


def _fill(row: Column, index: Mapping[str, int], document: Mapping[str, Any], column: str) -> None:
    """Copy a column of a report or outcome into a row; a device that was late has no new values."""
    values, devices = document.get(column), document.get("devices", ())
    if values is None:
        return
    present = document.get("present") or [True] * len(devices)
    for name, value, here in zip(devices, values, present, strict=True):
        if here and name in index:
            row[index[name]] = value


def estimate_fleet(recording: Recording, scenario: Scenario, table: DeviceTable) -> FleetEstimate:
    """Estimate the quantities of each device from the newest rounds among which they do not change.

    ``table`` has the values that ``scenario`` assumes. Raises InputError if there are too few rounds.
    """
    if len(recording) < MIN_ROUNDS:
        raise InputError(f"rounds: {len(recording)} are recorded, and an estimate needs {MIN_ROUNDS}; wait for more.")
    used = _newest_stationary(recording, scenario)
    assumed = {
        "request_rate_per_s": table.request_rate_per_s,
        "gain": mean_gain(scenario.channel, table),
        "training_cycles_per_sample": table.training_cycles_per_sample,
        "inference_cycles_per_request": table.inference_cycles_per_request,
    }
    ratios = _ratios(used, scenario)
    return FleetEstimate(used, {name: _compare(*ratios[name], assumed[name]) for name in QUANTITIES})


def _ratios(recording: Recording, scenario: Scenario) -> dict[str, tuple[Column, Column]]:
    """Return for each quantity a numerator and a denominator, [rounds, devices], whose sums have it as their ratio."""
    duration_s = np.broadcast_to(recording.duration_s[:, None], recording.queue.shape)
    cycles = recording.compute_s * recording.frequency_hz
    samples = np.where(recording.train, scenario.training.iterations * recording.data, np.nan)
    requests = np.where(recording.train, np.nan, recording.queue)
    return {
        "request_rate_per_s": (recording.arrived, duration_s),
        "gain": (recording.gain, np.ones_like(recording.gain)),
        "training_cycles_per_sample": (cycles, samples),
        "inference_cycles_per_request": (cycles, requests),
    }


def _ratio(numerator: Column, denominator: Column) -> tuple[Column, Column, NDArray[np.int64]]:
    """Estimate a ratio of sums over rounds for each device: the ratio, its standard error, and the number of rounds."""
    usable = np.isfinite(numerator) & (denominator > 0)
    above, below = np.where(usable, numerator, 0), np.where(usable, denominator, 0)
    count, total = usable.sum(axis=0), below.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = above.sum(axis=0) / total
        residual = above - value * below
        error = np.sqrt((residual**2).sum(axis=0) * count / np.maximum(count - 1, 1)) / total
    return value, error, count


def _compare(numerator: Column, denominator: Column, assumed: Column) -> Estimate:
    value, error, count = _ratio(numerator, denominator)
    freedom = np.maximum(count - 1, 1)
    enough = count >= MIN_ROUNDS
    tests = max(1, int(enough.sum())) * len(QUANTITIES)
    limit = stdtrit(freedom, 1 - SIGNIFICANCE / (2 * tests)) * error + MIN_CHANGE * np.abs(assumed)
    changed = enough & (np.abs(np.where(enough, value, assumed) - assumed) > limit)
    half_width = stdtrit(freedom, (1 + _CONFIDENCE) / 2) * error
    return Estimate(value, half_width, count.astype(np.int64), np.asarray(assumed, np.float64), changed)


def _newest_stationary(recording: Recording, scenario: Scenario) -> Recording:
    """Drop the older half of the rounds as long as request rates or gains differ between the halves."""
    while len(recording) >= 2 * MIN_ROUNDS:
        middle = len(recording) // 2
        older, newer = recording.part(slice(None, middle)), recording.part(slice(middle, None))
        if not any(_differs(older, newer, scenario, name) for name in ("request_rate_per_s", "gain")):
            break
        recording = newer
    return recording


def _differs(older: Recording, newer: Recording, scenario: Scenario, name: str) -> bool:
    before, error_before, count_before = _ratio(*_ratios(older, scenario)[name])
    after, error_after, count_after = _ratio(*_ratios(newer, scenario)[name])
    enough = np.minimum(count_before, count_after) >= MIN_ROUNDS // 2
    tests = max(1, int(enough.sum())) * 2
    quantile = stdtrit(np.maximum(np.minimum(count_before, count_after) - 1, 1), 1 - SIGNIFICANCE / (2 * tests))
    limit = quantile * np.hypot(error_before, error_after) + MIN_CHANGE * np.abs(before)
    return bool((enough & (np.abs(after - before) > limit)).any())


def estimated_scenario(scenario: Scenario, table: DeviceTable, estimate: FleetEstimate) -> Scenario:
    """Return the scenario with the estimates where they contradict it; the same one if they do not.

    Every device becomes a group of its own, at the distance that explains its mean gain. Raises InputError if the
    scenario cannot express the estimates.
    """
    if not estimate.changed:
        return scenario
    _check_models(scenario)
    used = {name: each.used for name, each in estimate.quantities.items()}
    rate, channel = used["request_rate_per_s"], scenario.channel
    loss_db = -10 * np.log10(used["gain"]) - channel.loss_at_1km_db - noise_dbw(channel)
    distance_m = 1e3 * 10 ** (loss_db / (10 * channel.loss_exponent))
    mean_rate = float(rate.mean())
    document = scenario.model_dump(mode="json")
    groups = []
    for n, name in enumerate(table.names):
        group = {**document["fleet"]["devices"][int(table.groups[n])], "name": name, "count": 1}
        exact: dict[str, float] = {
            **{column: float(getattr(table, column)[n]) for column in _DRAWN},
            "training_cycles_per_sample": float(used["training_cycles_per_sample"][n]),
            "inference_cycles_per_request": float(used["inference_cycles_per_request"][n]),
            "rate_factor": float(rate[n]) / mean_rate,
            "distance_m": float(distance_m[n]),
        }
        groups.append({**group, **exact})
    document["fleet"] = {"size": len(groups), "seed": scenario.fleet.seed, "devices": groups}
    document["workload"]["request_rate_per_s"] = mean_rate
    document["channel"]["shadowing_db"] = 0.0  # it is in the distances
    changed = Scenario.model_validate(document)
    if build_device_table(changed).names != list(table.names):
        raise InputError("fleet.devices: the names of the devices cannot be those of single groups; rename them.")
    return changed


_DRAWN = ("frequency_min_hz", "frequency_max_hz", "power_min_w", "power_max_w", "capacitance", "switch_energy_j")


def _check_models(scenario: Scenario) -> None:
    if type(scenario.workload.arrivals) not in (ConstantArrivalsConfig, PoissonArrivalsConfig):
        raise InputError(
            f"workload.arrivals: is {scenario.workload.arrivals.kind!r}, whose rates cannot be estimated; train with "
            "constant or poisson arrivals to use tuning."
        )
    if isinstance(scenario.channel.fading, TraceFadingConfig):
        raise InputError(
            "channel.fading: is recorded, so its gains cannot be estimated; train with another kind to use tuning."
        )
