"""Compare schedulers on live devices: processes on this machine that answer requests and train on their labels.

    python benchmarks/live.py [--duration 600] [--repeats 3] [--schedulers NAME]... [--run RUN] [--flower]

Every scheduler gets the same devices, the same requests of the task digits (the seed depends on the repeat alone) and
the same rounds on the wall clock; labels follow later. Accuracy and latency are those that the clients see. Energy is
estimated by the paper's model (E = e f^3 t) unless a meter is there. Schedulers:

    tandem-accuracy, tandem-latency, tandem-energy   a trained run (--run, or 'tandem train paper --preset quick')
    never                                            no device trains
    round-robin-4, round-robin-2, round-robin-1      one device trains in every 4th, 2nd or each round, in turn
    threshold                                        a device trains when its buffer is full

Results are written after each repeat. The same command goes on with what is missing. For each round the file also has
what the simulator's equations predict from the reported state and the decision, and what was measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import Popen
from typing import Any, Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

import tandem
from tandem import stats
from tandem.device.load import Load, LoadConfig, summarise
from tandem.device.model import load_model
from tandem.errors import InputError
from tandem.federated.flower.launcher import FLOWER_ENV, local_superlink
from tandem.federated.flower.processes import free_port, managed_process, reap_on_exit, sigterm_as_exit
from tandem.federated.task_requests import TaskRequests
from tandem.feel.accuracy import device_accuracy
from tandem.feel.channel import uplink_rate
from tandem.feel.costs import compute_latency, inference_latency, round_duration, upload_latency
from tandem.feel.queues import next_queue, next_waited
from tandem.feel.system import System
from tandem.io.child_process import ChildProcess
from tandem.io.tables import write_text
from tandem.live import LiveConfig, LiveServer, SocketTransport
from tandem.live.demo import in_background, wait_for
from tandem.live.flower_app import EXCHANGE_S, LiveSettings, follow_rounds, round_document, stop_rounds, write_settings
from tandem.live.server import DecisionService
from tandem.policy.heuristics import FULL_BUFFER
from tandem.scenario import Scenario, build_device_table, dump_scenario
from tandem.scenario.plugins import DigitsTaskConfig
from tandem.serving import Scheduler
from tandem.serving.bodies import (
    DecisionDocument,
    DecisionRequest,
    Objectives,
    OperatingPointDocument,
    OutcomeRequest,
    PolicyDocument,
    RecordedDocument,
    RoundsDocument,
    Weights,
)
from tandem.serving.export import export_run
from tandem.serving.messages import FleetReport, OperatingPoint

MODEL = "tandem.federated.task_model:digits"
RUN = Path("runs/demo")  # that of 'make demo'
TANDEM = [sys.executable, "-m", "tandem"]
POINTS = {"accuracy": (0.8, 0.1, 0.1), "latency": (0.1, 0.8, 0.1), "energy": (0.1, 0.1, 0.8)}
PERIODS = (4, 2, 1)  # rounds for each device that trains, of the round-robin schedulers
SOCKETS_S = 1.0  # of the deadline of a round, for messages over sockets
PROGRESS_S = 30.0
FLEET = "live"
Flags = NDArray[np.bool_]
Column = NDArray[np.float64]

# What a table shows of a repeat: the field, its heading, and the factor of its unit.
SHOWN = (
    *(("accuracy", "accuracy", 1.0), ("latency_s", "latency (ms)", 1e3), ("latency_p50_s", "p50 (ms)", 1e3)),
    *(("latency_p99_s", "p99 (ms)", 1e3), ("energy_w", "energy (W)", 1.0)),
    *(("trainers_per_round", "trainers", 1.0), ("rounds", "rounds", 1.0)),
    *(("refused", "refused", 1.0), ("lost", "lost", 1.0)),
)
OBJECTIVES = {"accuracy": 1.0, "latency_s": -1.0, "energy_w": -1.0}  # with the sign that makes more better
QUANTITIES = ("duration_s", "waiting_s", "accuracy")


# Schedulers


class Rule(Protocol):
    """Decides which devices train."""

    def __call__(self, report: FleetReport) -> Flags:
        """Return whether each device of the report trains."""


def never(report: FleetReport) -> Flags:
    """Let no device train."""
    return np.zeros(len(report.names), bool)


def round_robin(report: FleetReport, period: int) -> Flags:
    """Let one device train in every ``period``-th round, in turn."""
    turn, rest = divmod(report.round, period)
    chosen: Flags = np.arange(len(report.names)) == (turn % len(report.names) if rest == 0 else -1)
    return chosen


def threshold(report: FleetReport, full: Column) -> Flags:
    """Let each device train whose buffer holds ``full`` samples."""
    enough: Flags = np.asarray(report.data) >= full
    return enough


@dataclass
class RuleService:
    """A decision service that follows a rule; devices without samples, or that are away, serve at full frequency."""

    name: str
    rule: Rule
    power_w: Column
    frequency_hz: Column
    number: int = 0  # of the next round

    def next_round(self) -> int:
        return self.number

    def decide(self, report: FleetReport) -> DecisionDocument:
        present = np.ones(len(report.names), bool) if report.present is None else np.asarray(report.present)
        train = self.rule(report) & (np.asarray(report.data) > 0) & present
        self.number = report.round + 1
        return DecisionDocument(
            fleet=FLEET,
            round=report.round,
            devices=list(report.names),
            mode=["train" if each else "serve" for each in train],
            power_w=self.power_w.tolist(),
            frequency_hz=self.frequency_hz.tolist(),
            absent=[],
            late=[name for name, here in zip(report.names, present, strict=True) if not here],
            version=self.name,
            policy=PolicyDocument(  # a rule has no front
                index=0,
                network=0,
                preference=Weights(accuracy=0, latency=0, energy=0),
                objectives=Objectives(accuracy=0, latency_s=0, energy_j=0),
                violation_rate=0,
                reason=self.name,
            ),
            operating_point=OperatingPointDocument(
                preference=None, min_accuracy=None, max_latency_s=None, max_energy_j=None
            ),
            changes=[],
        )

    def record_outcome(self, outcome: OutcomeRequest) -> None:
        """Do nothing: a rule does not learn."""


@dataclass
class PolicyService:
    """A decision service that follows a trained policy, with the scheduler of 'tandem serve'."""

    scheduler: Scheduler
    number: int = 0  # of the next round

    def next_round(self) -> int:
        return self.number

    def decide(self, report: FleetReport) -> DecisionDocument:
        self.number = report.round + 1
        document = self.scheduler.decide(report).document()
        return DecisionDocument.model_validate({"fleet": FLEET, **document})

    def record_outcome(self, outcome: OutcomeRequest) -> None:
        """Do nothing: the policy is fixed."""


@dataclass(frozen=True)
class Fleet:
    """What all schedulers share: the scenario with the devices, its arrays, and the policy file of the run."""

    scenario: Scenario
    system: System
    scheduler: Scheduler

    @classmethod
    def build(cls, run_folder: Path, devices: int, rate_per_s: float) -> Fleet:
        """Use the scenario of a run, with this many devices and requests per second at each."""
        run = tandem.open_run(run_folder)
        fields = run.scenario.model_dump()
        fields["fleet"]["size"] = devices
        fields["workload"]["request_rate_per_s"] = rate_per_s
        scenario = Scenario.model_validate(fields)
        system = tandem.build_system(scenario)
        return cls(scenario, system, Scheduler(export_run(run, (scenario, system))))

    def services(self) -> dict[str, DecisionService]:
        """Return a new service for each scheduler, by name."""
        table = build_device_table(self.scenario)
        full = FULL_BUFFER * np.asarray(self.system.worst_case.max_data, np.float64)
        rules: dict[str, Rule] = {"never": never}
        rules |= {f"round-robin-{period}": partial(round_robin, period=period) for period in PERIODS}
        rules |= {"threshold": partial(threshold, full=full)}
        file = self.scheduler.policy_file
        trained: dict[str, DecisionService] = {
            f"tandem-{name}": PolicyService(Scheduler(file, OperatingPoint(point))) for name, point in POINTS.items()
        }
        return trained | {
            name: RuleService(name, rule, table.power_max_w, table.frequency_max_hz) for name, rule in rules.items()
        }


# Predictions


@eqx.filter_jit
def predict(system: System, state: dict[str, Any], train: Any, power_w: Any, frequency_hz: Any) -> dict[str, Any]:
    """Predict a round by the simulator's equations, from the reported state of the devices and the decision.

    ``waiting_s`` is the mean time since arrival over the requests that are served in the round or wait at its end.
    ``accuracy`` is the mean over the devices that serve.
    """
    devices, queue, waited_s = system.devices, state["queue"], state["waited_s"]
    train = train & (state["data"] > 0)
    rate = uplink_rate(system.bandwidth_hz, jnp.sum(train), power_w, state["last_gain"])
    compute_s = compute_latency(system.iterations, devices.training_cycles_per_sample, state["data"], frequency_hz)
    training_s = compute_s + upload_latency(system.update_bits, rate)
    inference_s = inference_latency(devices.inference_cycles_per_request, queue, frequency_hz)
    lasting_s = round_duration(train, training_s, inference_s, system.round_floor_s, system.idle_round_s)
    duration_s = jnp.minimum(lasting_s, system.round_max_s)
    arrived = state["rate_per_s"] * duration_s
    queue_after, _ = next_queue(train, queue, arrived, system.queue_max)
    waiting_s = jnp.sum(next_waited(train, waited_s, queue_after, duration_s))
    served_s = jnp.sum(jnp.where(train, 0.0, waited_s + queue * inference_s))
    requests = jnp.sum(queue_after) + jnp.sum(jnp.where(train, 0.0, queue))
    accuracy = device_accuracy(system.model_decay_per_s, state["model_age_s"], state["model_accuracy"])
    serving = jnp.sum(~train)
    return {
        "duration_s": duration_s,
        "waiting_s": (waiting_s + served_s) / requests,
        "accuracy": jnp.sum(jnp.where(train, 0.0, accuracy)) / serving,  # NaN if all train
    }


OBSERVED = ("queue", "data", "waited_s", "model_age_s", "model_accuracy", "last_gain")


@dataclass
class Predicting:
    """A decision service that also predicts each round that another one decides."""

    service: DecisionService
    system: System
    rate_per_s: float
    predicted: dict[int, dict[str, float]] = field(default_factory=dict)  # by round

    def next_round(self) -> int:
        return self.service.next_round()

    def decide(self, report: FleetReport) -> DecisionDocument:
        decision = self.service.decide(report)
        state = {name: jnp.asarray(getattr(report, name), float) for name in OBSERVED}
        state["rate_per_s"] = jnp.full(len(report.names), self.rate_per_s)
        train = jnp.asarray([mode == "train" for mode in decision.mode])
        power_w, frequency_hz = (jnp.asarray(column) for column in (decision.power_w, decision.frequency_hz))
        found = predict(self.system, state, train, power_w, frequency_hz)
        self.predicted[report.round] = {name: float(value) for name, value in found.items()}
        return decision

    def record_outcome(self, outcome: OutcomeRequest) -> Any:
        return self.service.record_outcome(outcome)


def measure_round(document: dict[str, Any]) -> dict[str, float | None]:
    """Return what was measured of the quantities that ``predict`` predicts, from the document of a round."""
    reported = [each for each in document["devices"] if each["served"] is not None]
    time_s = sum((each["latency_s"] or 0.0) * each["served"] + each["waited_s"] for each in reported)
    requests = sum(each["served"] + each["queue"] for each in reported)
    return {
        "duration_s": document["duration_s"],
        "waiting_s": time_s / requests if requests else None,
        "accuracy": document["accuracy"],
    }


# One repeat

Running = Iterator[tuple[list[str], Iterator[dict[str, Any]]]]  # addresses of devices, and a document for each round


@dataclass(frozen=True)
class Settings:
    """What all results of a file have in common."""

    duration_s: float
    devices: int
    rate_per_s: float
    feedback_delay_s: float
    seed: int
    flower: bool


@dataclass(frozen=True)
class Place:
    """Where the processes of a repeat run: a temporary folder, and a way to start a process that ends with it."""

    folder: Path
    environment: dict[str, str]
    stack: contextlib.ExitStack

    def start(self, command: Sequence[str], log: Path) -> Popen[bytes]:
        return self.stack.enter_context(managed_process(command, self.folder, self.environment, log))


@contextlib.contextmanager
def local_place() -> Iterator[Place]:
    """Make a folder; all processes that were started in it have ended after the block, even if this one is killed."""
    with sigterm_as_exit(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tandem-live-")))
        stack.enter_context(reap_on_exit(folder))
        yield Place(folder, {**os.environ, **FLOWER_ENV, "TMPDIR": str(folder)}, stack)


def start_devices(place: Place, scenario: Scenario, settings: Settings, options: Sequence[str]) -> list[str]:
    """Start the devices and wait until they serve; returns their addresses."""
    path = place.folder / "devices.yaml"
    write_text(path, dump_scenario(scenario) + "\n")
    urls = []
    for n in range(settings.devices):
        port = free_port()
        command = [*TANDEM, "device", MODEL, "--number", str(n), "--port", str(port), "--scenario", str(path)]
        command += ["--store", str(place.folder / f"device-{n}"), "--address", str(socket_of(place, n)), *options]
        place.start(command, place.folder / f"device-{n}.log")
        urls.append(f"http://127.0.0.1:{port}")
    for n, url in enumerate(urls):
        wait_for(url, place.folder / f"device-{n}.log")
    return urls


def socket_of(place: Place, device: int) -> Path:
    """Return the socket on which a device takes instructions."""
    return place.folder / f"{device}.socket"


@contextlib.contextmanager
def rounds_on_sockets(fleet: Fleet, settings: Settings, service: DecisionService) -> Running:
    """Start devices; yields their addresses and an iterator of rounds, without Flower."""
    with local_place() as place, contextlib.ExitStack() as stack:
        urls = start_devices(place, fleet.scenario, settings, [])
        limits = fleet.scenario.limits
        config = replace(LiveConfig.from_scenario(fleet.scenario), shortest_s=limits.round_floor_s)
        sockets = [socket_of(place, n) for n in range(settings.devices)]
        transport = SocketTransport(sockets, limits.round_max_s + SOCKETS_S)
        stack.callback(transport.close)
        server = LiveServer(config, load_model(MODEL).get_weights(), service, transport, place.folder / "server")
        yield urls, endless_rounds(server)


def endless_rounds(server: LiveServer) -> Iterator[dict[str, Any]]:
    """Run one round after another; yields a document for each."""
    while True:
        yield round_document(server.run_round(), server)


@contextlib.contextmanager
def rounds_over_flower(fleet: Fleet, settings: Settings, service: DecisionService) -> Running:
    """Start a SuperLink and devices with their nodes; yields addresses and an iterator of rounds over Flower."""
    limits = fleet.scenario.limits
    with (
        tempfile.TemporaryDirectory(prefix="tandem-live-") as folder,
        served_over_http(service) as url,
        local_superlink(Path(folder), False) as deployment,
    ):
        live = LiveSettings(
            server=url,
            model=MODEL,
            deadline_s=limits.round_max_s + EXCHANGE_S,
            wait_s=120.0,
            shortest_s=limits.round_floor_s,
        )
        write_settings(Path(folder), live, fleet.scenario)
        place = Place(deployment.neutral, deployment.environment, deployment.stack)
        urls = start_devices(place, fleet.scenario, settings, ["--superlink", f"127.0.0.1:{deployment.port}"])
        submitted = deployment.submit(False)
        try:
            yield urls, follow_rounds(Path(folder), submitted)
        finally:
            stop_rounds(Path(folder), submitted)


@contextlib.contextmanager
def served_over_http(service: DecisionService) -> Iterator[str]:
    """Serve the part of the HTTP interface of 'tandem serve' that live rounds use; yields the address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(RoundsDocument(fleet=FLEET, next_round=service.next_round(), rounds=[], before=None))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/decisions":
                self.answer(service.decide(DecisionRequest.model_validate_json(body).report()))
            else:
                outcome = OutcomeRequest.model_validate_json(body)
                service.record_outcome(outcome)
                self.answer(RecordedDocument(fleet=FLEET, round=outcome.round, recorded=True))

        def answer(self, document: Any) -> None:
            content = document.model_dump_json().encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write no log."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


def run_repeat(fleet: Fleet, settings: Settings, name: str, repeat: int) -> dict[str, Any]:
    """Run a scheduler once and return what was measured."""
    chosen = fleet.services()[name]
    service = Predicting(chosen, fleet.system, settings.rate_per_s)
    seed = settings.seed + repeat
    source = TaskRequests(DigitsTaskConfig(), settings.devices, seed)
    config = LoadConfig(settings.rate_per_s, settings.duration_s, settings.feedback_delay_s, seed=seed)
    documents: list[dict[str, Any]] = []
    start = rounds_over_flower if settings.flower else rounds_on_sockets
    with start(fleet, settings, service) as (urls, rounds):
        next(rounds)  # the first exchange: all devices are there
        load = Load(urls, source, config)
        load_before, began_s = os.getloadavg()[0], time.monotonic()
        shown_s = began_s
        with in_background(load) as sending:
            for document in rounds:
                if document.get("round") is not None:
                    documents.append(document)
                if time.monotonic() - shown_s > PROGRESS_S:
                    shown_s = time.monotonic()
                    say(f"  {shown_s - began_s:.0f} s, {len(documents)} rounds, {len(load.records)} requests")
                if not sending.is_alive():  # all answers and labels are there
                    break
        elapsed_s = time.monotonic() - began_s
    if load.elapsed_s < settings.duration_s:
        raise InputError(f"{name}: the requests ended after {load.elapsed_s:.0f} s; see the messages above.")
    clients = summarise(load.records, settings.devices, settings.duration_s)
    energy_j = sum(each["energy_j"] for each in documents)
    return {
        "scheduler": name,
        "repeat": repeat,
        "seed": seed,
        **{key: clients[key] for key in ("requests", "answered", "accuracy")},
        **{key: clients[key] for key in ("latency_s", "latency_p50_s", "latency_p99_s")},
        "refused": clients["rejected"] + clients["expired"] + clients["refused"],
        "lost": clients["without_answer"],
        "labelled": clients["labelled"],
        "elapsed_s": elapsed_s,
        "rounds": len(documents),
        "trainers_per_round": float(np.mean([len(each["trained"]) for each in documents])),
        "failures": sum(len(each["failures"]) for each in documents),
        "energy_w": energy_j / sum(each["duration_s"] for each in documents),
        "energy_is_estimated": any(each["energy_is_estimated"] for each in documents),
        "load_1min_before": load_before,
        "policy": chosen.scheduler.policy.document() if isinstance(chosen, PolicyService) else None,
        "by_round": by_round(documents, service.predicted),
    }


def by_round(documents: Sequence[dict[str, Any]], predicted: dict[int, dict[str, float]]) -> dict[str, list[Any]]:
    """Return the columns of a repeat's rounds: trainers, and each quantity as predicted and as measured."""
    columns: dict[str, list[Any]] = {"trained": [len(each["trained"]) for each in documents]}
    measured = [measure_round(each) for each in documents]
    for name in QUANTITIES:
        columns[f"{name}_predicted"] = [_rounded(predicted[each["round"]][name]) for each in documents]
        columns[f"{name}_measured"] = [_rounded(each[name]) for each in measured]
    return columns


def _rounded(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(f"{value:.5g}")


# Evaluation


def summarise_results(results: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return, for each scheduler, the mean over repeats of each measured value with its 95 % interval."""
    return {
        name: {key: vars(stats.mean([each[key] for each in some])) for key, _, _ in SHOWN} | {"repeats": len(some)}
        for name, some in _by_scheduler(results).items()
    }


def find_dominated(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the pairs of schedulers of which the first is better in some mean objective and worse in none.

    ``clear``: the objectives for which the 95 % interval of the difference, repeat by repeat, excludes 0.
    """
    schedulers = _by_scheduler(results)
    found = []
    for first, of_first in schedulers.items():
        for second, of_second in schedulers.items():
            pairs = [(a, b) for a in of_first for b in of_second if a["repeat"] == b["repeat"]]
            if first == second or not pairs:
                continue
            gains = {key: stats.mean([sign * (a[key] - b[key]) for a, b in pairs]) for key, sign in OBJECTIVES.items()}
            if all(gain.value >= 0 for gain in gains.values()) and any(gain.value > 0 for gain in gains.values()):
                clear = [key for key, gain in gains.items() if len(pairs) > 1 and gain.low > 0]
                found.append({"scheduler": first, "dominates": second, "repeats": len(pairs), "clear": clear})
    return found


def compare_model(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how well the equations predict rounds, for all schedulers together and for each."""
    groups = {"all": list(results), **_by_scheduler(results)}
    return [
        {"quantity": quantity, "scheduler": name, **_agreement(some, quantity)}
        for quantity in QUANTITIES
        for name, some in groups.items()
    ]


def _agreement(results: Sequence[dict[str, Any]], quantity: str) -> dict[str, Any]:
    columns = [
        np.array([value for each in results for value in each["by_round"][f"{quantity}_{kind}"]], np.float64)
        for kind in ("predicted", "measured")
    ]
    known = np.isfinite(columns[0]) & np.isfinite(columns[1])
    predicted, measured = (column[known] for column in columns)
    varies = known.sum() > 1 and predicted.std() > 0 and measured.std() > 0
    return {
        "rounds": int(known.sum()),
        "predicted": float(predicted.mean()) if known.any() else None,
        "measured": float(measured.mean()) if known.any() else None,
        "correlation": float(np.corrcoef(predicted, measured)[0, 1]) if varies else None,
        "rmse": float(np.sqrt(np.mean((predicted - measured) ** 2))) if known.any() else None,
    }


def _by_scheduler(results: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    names = dict.fromkeys(each["scheduler"] for each in results)
    return {name: [each for each in results if each["scheduler"] == name] for name in names}


# Files and tables


def read_results(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the results that are there already; raises InputError if they were made with other settings."""
    if not path.exists():
        return []
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        made_with, results = document["settings"], document["results"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"--out {path}: is not a file of this benchmark; name another.") from None
    different = [key for key in settings if made_with.get(key) != settings[key]]
    if different:
        raise InputError(f"--out {path}: was made with another {different[0]}; name another file, or delete it.")
    return list(results)


def write_results(path: Path, settings: dict[str, Any], results: Sequence[dict[str, Any]]) -> None:
    """Write all results and what follows from them."""
    document = {
        "settings": settings,
        "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "summary": summarise_results(results),
        "dominated": find_dominated(results),
        "model": compare_model(results),
    }
    lines = ",\n".join(json.dumps(each, allow_nan=False) for each in results)
    text = json.dumps(document, indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, f'{text.removesuffix("}").rstrip()},\n "results": [\n{lines}\n ]\n}}\n')


def print_tables(results: Sequence[dict[str, Any]]) -> None:
    """Print what was measured, which schedulers dominate which, and the model against reality."""
    console = Console(width=None if sys.stdout.isatty() else 220, highlight=False)
    table = Table("scheduler", "repeats", *(heading for _, heading, _ in SHOWN), box=MARKDOWN)
    for name, summary in summarise_results(results).items():
        cells = [str(stats.Estimate(**summary[key]).scaled(factor)) for key, _, factor in SHOWN]
        table.add_row(name, str(summary["repeats"]), *cells)
    console.print(table)
    estimated = any(each["energy_is_estimated"] for each in results)
    console.print(
        "Means over repeats with 95 % intervals. Energy of all devices together, "
        + ("estimated by E = e f^3 t from the measured time of computing." if estimated else "as measured.")
    )
    pairs = find_dominated(results)
    console.print(
        "\nDominance in accuracy, mean latency and energy, by means:" if pairs else "\nNo scheduler dominates another."
    )
    for each in pairs:
        clear = ", ".join(key.split("_")[0] for key in each["clear"]) or "nothing"
        console.print(f"  {each['scheduler']} dominates {each['dominates']}; beyond the 95 % interval: {clear}")
    model = Table("model", "scheduler", "rounds", "predicted", "measured", "correlation", "RMSE", box=MARKDOWN)
    for each in compare_model(results):
        values = [each[key] for key in ("predicted", "measured", "correlation", "rmse")]
        cells = ["" if value is None else f"{value:.3g}" for value in values]
        model.add_row(each["quantity"], each["scheduler"], str(each["rounds"]), *cells)
    console.print("\nModel against reality:")
    console.print(model)


def trained_run(folder: Path | None) -> Path:
    """Return the folder of a trained run; without one, the small run of 'make demo' is trained, or resumed."""
    if folder is not None:
        return folder
    record = RUN / "run.json"
    status = json.loads(record.read_text(encoding="utf-8"))["status"] if record.exists() else None
    if status != "finished":
        command = ["--resume", RUN] if status else ["paper", "--preset", "quick", "--out", RUN]
        with ChildProcess(["train", *command], stdout=sys.stderr) as child:
            if child.wait():
                raise InputError(f"{RUN}: the training has failed; see above.")
    return RUN


def say(text: str) -> None:
    """Tell the user about the progress."""
    print(text, file=sys.stderr, flush=True)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    names = [*(f"tandem-{name}" for name in POINTS), "never", *(f"round-robin-{n}" for n in PERIODS), "threshold"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--duration", type=float, default=600.0, metavar="SECONDS", help="of each repeat (default: 600)")
    add("--repeats", type=int, default=3, help="of each scheduler, with other seeds (default: 3)")
    add("--devices", type=int, default=4, help="(default: 4)")
    add("--rate", type=float, default=6.0, metavar="N", help="requests per second at each device (default: 6)")
    add("--feedback-delay", type=float, default=1.0, metavar="SECONDS", help="mean delay of labels (default: 1)")
    add("--schedulers", action="append", choices=names, metavar="NAME", help="can be repeated (default: all)")
    add("--run", type=Path, help="folder of a trained run (default: a small one is trained in runs/demo)")
    add("--flower", action="store_true", help="send messages over Flower instead of local sockets")
    add("--seed", type=int, default=0, help="of the first repeat (default: 0)")
    add("--out", type=Path, default=Path("docs/data/live.json"), help="(default: docs/data/live.json)")
    arguments = parser.parse_args()
    arguments.schedulers = arguments.schedulers or names
    if min(arguments.duration, arguments.repeats, arguments.devices, arguments.rate) <= 0:
        parser.error("--duration, --repeats, --devices and --rate must be positive")
    return arguments


def run_benchmark(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run what is missing and return all results of the file."""
    settings = Settings(
        arguments.duration,
        arguments.devices,
        arguments.rate,
        arguments.feedback_delay,
        arguments.seed,
        arguments.flower,
    )
    fleet = Fleet.build(trained_run(arguments.run), settings.devices, settings.rate_per_s)
    common = {**vars(settings), "policy": fleet.scheduler.policy_file.version}
    results = read_results(arguments.out, common)
    done = {(each["scheduler"], each["repeat"]) for each in results}
    missing = [(n, name) for n in range(arguments.repeats) for name in arguments.schedulers if (name, n) not in done]
    say(f"{len(missing)} of {arguments.repeats * len(arguments.schedulers)} repeats are to be run.")
    for count, (repeat, name) in enumerate(missing, start=1):
        say(f"{count} of {len(missing)}: {name}, repeat {repeat + 1}")
        results.append(run_repeat(fleet, settings, name, repeat))
        write_results(arguments.out, common, results)
    return results


def main() -> None:
    arguments = read_arguments()
    try:
        print_tables(run_benchmark(arguments))
    except InputError as error:
        sys.exit(f"live.py: {error}")
    except KeyboardInterrupt:
        say("interrupted; the same command goes on with what is missing.")
        sys.exit(130)


if __name__ == "__main__":
    main()
