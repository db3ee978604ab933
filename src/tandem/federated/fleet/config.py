"""What a fleet's run is told, in a folder that its server reads: settings and the scenario; and who decides."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tandem.errors import InputError, did_you_mean
from tandem.federated.build import build_system
from tandem.federated.fleet.server_store import ROUNDS, SERVER, server_lock
from tandem.federated.fleet.spec import FleetSpec, build_spec
from tandem.feel.system import System
from tandem.io.atomic import atomic_write
from tandem.policy import HEURISTICS
from tandem.policy.base import Policy
from tandem.runs.evaluation import check_fits
from tandem.runs.run import open_run
from tandem.scenario import Scenario, dump_scenario, load_scenario

CONFIG, SCENARIO = "fleet-settings.json", "scenario.yaml"
RESULT, PROGRESS, FAILURE = "fleet.json", "progress.jsonl", "failure.txt"
DEVICES = "devices"  # the folder of simulated devices' states
DETAILS = (SERVER, RESULT, PROGRESS, FAILURE, "trace.csv", "trace.parquet")


class FleetConfig(BaseModel):
    """A run of a fleet."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str  # a name that no other run has
    policy: str  # a rule, or the folder of a trained run
    prefer: tuple[float, float, float] | None = None  # weights of accuracy, latency and energy, for a trained run
    seed: int = 0
    rounds: int = 5
    deadline_s: float = 60.0  # by the wall clock, for a round's reports
    patience_s: float = 120.0  # by the wall clock, for devices to be there at the start
    trace: str = "csv"
    engine: str = "simulation"
    hardware: str = "simulated"
    superlink: str | None = None  # of the user's Flower configuration; none is started then
    nodes: dict[int, int] | None = None  # Flower's node of each device; without it a node is who it says it is


def write_config(folder: Path, settings: FleetConfig, scenario: Scenario) -> None:
    """Put what the server needs into the folder, and take away what an earlier run has left."""
    with server_lock(folder):
        for name in DETAILS:
            (folder / name).unlink(missing_ok=True)
        for name in (ROUNDS, DEVICES):
            shutil.rmtree(folder / name, ignore_errors=True)
    for name, text in ((CONFIG, settings.model_dump_json(indent=2)), (SCENARIO, dump_scenario(scenario))):
        with atomic_write(folder / name) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")


def read_config(folder: Path) -> FleetConfig:
    """The settings of a run."""
    path = folder / CONFIG
    try:
        return FleetConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        raise InputError(f"{path}: is not there or not whole; begin the run anew with 'tandem fleet run'.") from None


def read_spec(folder: Path, seed: int) -> FleetSpec:
    """The fleet of the scenario in this folder."""
    return build_spec(load_scenario(folder / SCENARIO), seed)


def load_policy(name: str, prefer: tuple[float, float, float] | None, system: System) -> Policy:
    """A rule, or a trained run's policy for a preference; refused if it cannot decide for this fleet."""
    if name in HEURISTICS:
        if prefer is not None:
            raise InputError(f"--prefer: the rule {name} has no preferences; name a trained run with --policy.")
        return HEURISTICS[name]()
    folder = Path(name)
    if not folder.is_dir():
        raise InputError(f"--policy {name}: is neither a trained run nor a rule; {did_you_mean(name, HEURISTICS)}.")
    run = open_run(folder, build_system=build_system)
    check_fits(run, system)
    return run.policy_for(prefer or (1 / 3, 1 / 3, 1 / 3))
