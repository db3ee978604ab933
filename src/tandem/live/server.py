"""The server of live devices: each round it reports their measured state, follows the decision, and averages updates.

A round starts when the last one is over. It ends when every device has reported, or at the deadline of the transport:
trainers report when they are done, the others after the planned duration. Decisions come from ``tandem serve``, so its
history, metrics, events, operating point and background tuning hold for live devices too.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tandem.device.messages import (
    NO_ROUND,
    LiveInstruction,
    LiveReport,
    ProtocolError,
    Weights,
    check_weights,
    from_bytes,
)
from tandem.errors import InputError
from tandem.feel.path_loss import mean_gain
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.atomic import results_folder
from tandem.scenario import Scenario, build_device_table
from tandem.serving.bodies import DecisionDocument, OutcomeRequest
from tandem.serving.messages import FleetReport

STATE = "server.safetensors"
FRESH_AGE_S = 1.0  # data age without samples, as in the simulator
SHORTEST_S = 0.2  # of a planned round, unless a configuration has another
RECENT_ROUNDS = 20  # whose labels the accuracy of the server's model is measured by
Transport = Callable[[Sequence[LiveInstruction]], Mapping[int, bytes | str]]


class DecisionService(Protocol):
    """Decides and records; ``tandem.serving.Client`` is one."""

    def next_round(self) -> int:
        """Return the number of the next round."""

    def decide(self, report: FleetReport) -> DecisionDocument:
        """Return the decisions for the devices of a report."""

    def record_outcome(self, outcome: OutcomeRequest) -> Any:
        """Record what happened in a round."""


@dataclass(frozen=True)
class LiveConfig:
    """The constants of a fleet that devices do not measure."""

    names: tuple[str, ...]
    iterations: int  # U
    round_max_s: float  # L_max
    idle_round_s: float
    queue_max: float  # Q_max
    data_max: float  # D_max
    pretrained_accuracy: float
    capacitance: tuple[float, ...]
    seconds_per_sample: tuple[float, ...]  # of training, before it is measured
    gain: tuple[float, ...]  # of the channel; devices do not measure it
    power_min_w: tuple[float, ...]
    frequency_max_hz: tuple[float, ...]
    shortest_s: float = field(default=SHORTEST_S, kw_only=True)  # least planned duration of a round

    @classmethod
    def from_scenario(cls, scenario: Scenario) -> LiveConfig:
        """Take the constants of a scenario's fleet."""
        table, limits = build_device_table(scenario), scenario.limits
        iterations = scenario.training.iterations
        seconds = iterations * table.training_cycles_per_sample / table.frequency_max_hz
        gain = mean_gain(scenario.channel, table)
        columns = (table.capacitance, seconds, gain, table.power_min_w, table.frequency_max_hz)
        return cls(
            tuple(table.names),
            iterations,
            limits.round_max_s,
            limits.idle_round_s,
            limits.queue_max,
            limits.data_max,
            scenario.accuracy.pretrained,
            *(tuple(column.tolist()) for column in columns),
        )


@dataclass(frozen=True)
class DeviceView:
    """What the server knows of a device."""

    present: bool = False  # whether it reported in the last round
    queue: float = 0.0
    waited_s: float = 0.0
    data: float = 0.0
    data_age_s: float = FRESH_AGE_S
    model_age_s: float = 0.0
    model_accuracy: float = 0.0
    settled: int = NO_ROUND  # the last acknowledgement that the device has applied
    acknowledged: int = NO_ROUND  # the last round whose update of this device is in the global model
    last_train: bool = False
    last_power_w: float = 0.0
    last_frequency_hz: float = 0.0
    seconds_per_sample: float = 0.0  # of training


@dataclass(frozen=True)
class LiveRound:
    """What happened in a round."""

    number: int  # of the service; NO_ROUND for the first exchange, which only asks for reports
    duration_s: float
    decision: DecisionDocument | None
    reports: dict[int, LiveReport]
    failures: dict[int, str]  # reason by device
    trained: tuple[int, ...]  # devices whose updates were averaged
    accuracy: float | None  # of the predictions whose labels arrived
    energy_j: float
    energy_is_estimated: bool


@dataclass
class _State:
    """What survives a restart, beside the weights."""

    run: str
    round: int = NO_ROUND  # of messages; the service has numbers of its own
    last_duration_s: float = 0.0
    labels: list[tuple[int, int]] = field(default_factory=list)  # (labelled, correct) of recent rounds
    views: list[DeviceView] = field(default_factory=list)


class LiveServer:
    """Runs rounds. Its state is on disk before the next instructions are sent, so that it can be killed at any time."""

    def __init__(
        self, config: LiveConfig, weights: Weights, service: DecisionService, transport: Transport, folder: Path
    ) -> None:
        """Start with these weights, or go on with the state in ``folder``."""
        self.config = config
        self._service = service
        self._transport = transport
        self._path = folder / STATE
        self.weights = weights
        results_folder(folder, STATE, "live.json")  # refuses a folder of something else
        if self._path.exists():
            self._state = self._load()
        else:
            views = [
                DeviceView(
                    model_accuracy=config.pretrained_accuracy,
                    last_power_w=config.power_min_w[n],
                    last_frequency_hz=config.frequency_max_hz[n],
                    seconds_per_sample=config.seconds_per_sample[n],
                )
                for n in range(len(config.names))
            ]
            self._state = _State(uuid.uuid4().hex, views=views)

    @property
    def views(self) -> Sequence[DeviceView]:
        """What the server knows of each device."""
        return tuple(self._state.views)

    @property
    def accuracy(self) -> float | None:
        """The accuracy of recent predictions, by their labels; None without any."""
        labelled = sum(labelled for labelled, _ in self._state.labels)
        return sum(correct for _, correct in self._state.labels) / labelled if labelled else None

    def run_round(self) -> LiveRound:
        """Run one round. Without a device that has reported, all are asked for a report first."""
        if not any(view.present for view in self._state.views):
            return self._exchange(None, NO_ROUND)
        number = self._service.next_round()
        return self._exchange(self._service.decide(self._report(number)), number)

    def _report(self, number: int) -> FleetReport:
        views = self._state.views

        # A device may hold more than the scenario allows, such as after an absence; it then violates C2 or C3. The
        # service is told the limit, since its policy knows no states beyond it. The round's document has the violation.
        highest = {"queue": self.config.queue_max, "data": self.config.data_max}

        def column(name: str) -> Any:
            values = np.array([getattr(view, name) for view in views])
            return np.minimum(values, highest[name]) if name in highest else values

        return FleetReport(
            names=self.config.names,
            round=number,
            last_duration_s=self._state.last_duration_s,
            last_gain=np.array(self.config.gain),
            present=column("present"),
            **{
                name: column(name)
                for name in (
                    *("queue", "data", "waited_s", "data_age_s", "model_age_s", "model_accuracy"),
                    *("last_train", "last_power_w", "last_frequency_hz"),
                )
            },
        )

    def _exchange(self, decision: DecisionDocument | None, number: int) -> LiveRound:
        state = self._state
        state.round += 1
        instructions = self._instructions(decision)
        began_s = time.monotonic()
        answers = self._transport(instructions)
        duration_s = time.monotonic() - began_s
        reports: dict[int, LiveReport] = {}
        failures: dict[int, str] = {}
        for instruction in instructions:
            try:
                reports[instruction.device] = self._read(answers.get(instruction.device, "no answer"), instruction)
            except ProtocolError as error:
                failures[instruction.device] = str(error)
        # An update that took longer than L_max (C1) is not used; the device keeps its samples.
        late = {n for n, each in reports.items() if each.trained and each.compute_s > self.config.round_max_s}
        trained = tuple(n for n, report in reports.items() if report.trained and n not in late)
        failures |= dict.fromkeys(late, f"its training took longer than {self.config.round_max_s:g} s")
        if trained:
            self.weights = average_weights(
                [_weights(reports[n]) for n in trained], [reports[n].samples for n in trained]
            )
        labelled, correct = (sum(getattr(each, name) for each in reports.values()) for name in ("labelled", "correct"))
        state.labels = [*state.labels, (labelled, correct)][-RECENT_ROUNDS:]
        state.last_duration_s = duration_s
        state.views = [
            self._update(view, instruction, reports.get(n), n in trained)
            for n, (view, instruction) in enumerate(zip(state.views, instructions, strict=True))
        ]
        self._save()
        energies = [self._energy(n, report, instructions[n]) for n, report in reports.items()]
        outcome = LiveRound(
            number=number,
            duration_s=duration_s,
            decision=decision,
            reports=reports,
            failures=failures,
            trained=trained,
            accuracy=correct / labelled if labelled else None,
            energy_j=sum(energy_j for energy_j, _ in energies),
            energy_is_estimated=any(estimated for _, estimated in energies),
        )
        if decision is not None:
            self._service.record_outcome(self._outcome(outcome, dict(zip(reports, energies, strict=True))))
        return outcome

    def _instructions(self, decision: DecisionDocument | None) -> list[LiveInstruction]:
        views = self._state.views
        place = {} if decision is None else {name: n for n, name in enumerate(decision.devices)}

        def decided(device: int, column: str) -> Any:
            n = place.get(self.config.names[device])
            return None if decision is None or n is None else getattr(decision, column)[n]

        train = [decided(n, "mode") == "train" for n in range(len(views))]
        times = [views[n].data * views[n].seconds_per_sample for n in range(len(views)) if train[n]]
        planned_s = max(times) if times else 0.0 if decision is None else self.config.idle_round_s
        planned_s = 0.0 if decision is None else min(max(planned_s, self.config.shortest_s), self.config.round_max_s)
        return [
            LiveInstruction(
                run=self._state.run,
                device=n,
                round=self._state.round,
                train=train[n],
                duration_s=planned_s,
                iterations=self.config.iterations,
                power_w=decided(n, "power_w"),
                frequency_hz=decided(n, "frequency_hz"),
                acknowledged=view.acknowledged,
                weights=self.weights if train[n] or view.acknowledged > view.settled else None,
            )
            for n, view in enumerate(views)
        ]

    def _read(self, answer: bytes | str, instruction: LiveInstruction) -> LiveReport:
        """Return the report, if it fits the instruction; raises ProtocolError."""
        if isinstance(answer, str):
            raise ProtocolError(answer)
        report = from_bytes(LiveReport, answer)
        for name in ("run", "device", "round"):
            value, expected = getattr(report, name), getattr(instruction, name)
            if value != expected:
                raise ProtocolError(f"{name}: the report is of {value}, the instruction of {expected}.")
        if report.settled > instruction.acknowledged:
            raise ProtocolError(f"settled: round {report.settled} was never acknowledged.")
        if report.trained:
            if not instruction.train or report.samples == 0:
                raise ProtocolError("trained: the instruction was to serve, or there were no samples.")
            check_weights(_weights(report), self.weights)
        return report

    def _update(
        self, view: DeviceView, instruction: LiveInstruction, report: LiveReport | None, trained: bool
    ) -> DeviceView:
        sent: dict[str, Any] = {"last_train": instruction.train}
        if instruction.frequency_hz is not None:
            sent |= {"last_frequency_hz": instruction.frequency_hz}
        if instruction.train and instruction.power_w is not None:
            sent |= {"last_power_w": instruction.power_w}
        if report is None:
            return replace(view, present=False, **sent)
        after = replace(
            view,
            present=True,
            queue=report.queue,
            waited_s=report.waited_s,
            data=report.data,
            data_age_s=report.data_age_s if report.data else FRESH_AGE_S,
            model_age_s=report.model_age_s,
            settled=report.settled,
            last_frequency_hz=report.frequency_hz or instruction.frequency_hz or view.last_frequency_hz,
            **{name: value for name, value in sent.items() if name != "last_frequency_hz"},
        )
        if not trained:
            return after
        # The next instruction acknowledges the update; the device then deletes its samples.
        measured = self.accuracy
        return replace(
            after,
            acknowledged=report.round,
            data=max(report.data - report.samples, 0),
            model_age_s=0.0,
            model_accuracy=view.model_accuracy if measured is None else measured,
            seconds_per_sample=report.compute_s / report.samples,
        )

    def _energy(self, device: int, report: LiveReport, instruction: LiveInstruction) -> tuple[float, bool]:
        """Return the energy of a device in a round, and whether it is an estimate: E = e f^3 t."""
        if report.energy_j is not None:
            return report.energy_j, report.energy_source == "estimate"
        frequency_hz = report.frequency_hz or instruction.frequency_hz or self.config.frequency_max_hz[device]
        return self.config.capacitance[device] * frequency_hz**3 * report.compute_s, True

    def _outcome(self, done: LiveRound, energies: Mapping[int, tuple[float, bool]]) -> OutcomeRequest:
        order = sorted(done.reports)
        names, reports = self.config.names, [done.reports[n] for n in order]
        return OutcomeRequest(
            round=done.number,
            duration_s=done.duration_s,
            energy_j=done.energy_j,
            energy_is_estimated=done.energy_is_estimated,
            accuracy=done.accuracy,
            late=[names[n] for n in sorted(done.failures)],
            devices=[names[n] for n in order],
            requests_arrived=[float(each.arrived) for each in reports],
            requests_served=[float(each.served) for each in reports],
            samples_arrived=[float(each.labelled) for each in reports],
            compute_s=[each.compute_s for each in reports],
            device_energy_j=[energies[n][0] for n in order],
        )

    def _save(self) -> None:
        note = {**vars(self._state), "views": [asdict(view) for view in self._state.views], "names": self.config.names}
        write_arrays(self._path, self.weights, note, durable=True)

    def _load(self) -> _State:
        fix = "restore it from a copy, or name another folder"
        arrays, note = read_arrays(self._path, fix)
        try:
            check_weights(arrays, self.weights)
            if note.pop("names") != list(self.config.names):
                raise ProtocolError("names: it is of another fleet.")
            views = [DeviceView(**view) for view in note.pop("views")]
            state = _State(**{**note, "labels": [tuple(pair) for pair in note["labels"]]}, views=views)
        except (ProtocolError, TypeError, KeyError) as error:
            raise InputError(
                f"{self._path}: does not fit the model or the fleet ({error}); name another folder."
            ) from None
        self.weights = arrays
        return state


def average_weights(updates: Sequence[Weights], samples: Sequence[int]) -> Weights:
    """Return w = sum of D_n w_n / sum of D_n (FedAvg); whole numbers, such as counts of batches, are the largest."""
    shares = np.asarray(samples, np.float64) / sum(samples)

    def mean(name: str) -> Any:
        arrays = [update[name] for update in updates]
        if arrays[0].dtype.kind != "f":
            return np.max(np.stack(arrays), axis=0)
        return sum(share * array.astype(np.float64) for share, array in zip(shares, arrays, strict=True)).astype(
            arrays[0].dtype
        )

    return {name: mean(name) for name in updates[0]}


def _weights(report: LiveReport) -> Weights:
    if report.weights is None:
        raise ProtocolError("trained: the report has no weights.")
    return report.weights
