"""The configuration of a fleet's run, as it is stored in the run's folder."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tandem.errors import InputError
from tandem.federated.fleet.run_dir import (
    CLIENT_STORE,
    CONFIG,
    FAILURE,
    PROGRESS,
    RESULT,
    ROUNDS,
    SCENARIO,
    SERVER,
    TRACES,
    server_lock,
)
from tandem.io.tables import write_text
from tandem.scenario import Scenario, dump_scenario

DEADLINE_MARGIN_S = 50.0  # for messages, and for the compilation in the first round
ENGINES = ("simulation", "deployment")  # Flower's two engines
NODES = ("flower", "tandem")  # Flower's SuperNode, or 'tandem node'


class FleetConfig(BaseModel):
    """The options of a fleet's run. The number of rounds is that of the scenario."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(default_factory=lambda: uuid.uuid4().hex)  # an identifier that no other run has
    policy: str = "threshold"  # a heuristic, or the folder of a trained run
    preference: tuple[float, float, float] | None = None  # weights of accuracy, latency and energy, for a trained run
    seed: int = 0
    deadline_s: float | None = None  # wall-clock time in which reports must arrive; see report_deadline_s
    wait_s: float = 120.0  # wall-clock time in which devices must connect before the first round
    trace: str = "csv"  # csv, parquet or none
    engine: str = "simulation"  # one of ENGINES
    hardware: str = "simulated"  # one of device.hardware.HARDWARE
    node: str = "flower"  # one of NODES: what connects the devices of a deployment
    superlink: str | None = None  # a running SuperLink of the user's Flower configuration, instead of a local one
    nodes: dict[int, int] | None = None  # the Flower node of each device; None: each node names its device itself

    @property
    def weights(self) -> tuple[float, float, float]:
        """The preference of a trained run's policy; equal weights if none was given."""
        return (1 / 3, 1 / 3, 1 / 3) if self.preference is None else self.preference

    def report_deadline_s(self, round_max_s: float) -> float:
        """Return the deadline for reports; the default is L_max plus a margin."""
        return round_max_s + DEADLINE_MARGIN_S if self.deadline_s is None else self.deadline_s


def write_config(folder: Path, config: FleetConfig, scenario: Scenario) -> None:
    """Write the configuration and the scenario of a new run, and delete the files of an earlier run."""
    with server_lock(folder):
        for name in (SERVER, RESULT, PROGRESS, FAILURE, *TRACES):
            (folder / name).unlink(missing_ok=True)
        for name in (ROUNDS, CLIENT_STORE):
            shutil.rmtree(folder / name, ignore_errors=True)
    write_text(folder / CONFIG, config.model_dump_json(indent=2) + "\n")
    write_text(folder / SCENARIO, dump_scenario(scenario) + "\n")


def read_config(folder: Path) -> FleetConfig:
    """Read the configuration of the run in a folder."""
    path = folder / CONFIG
    try:
        return FleetConfig.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError):
        raise InputError(f"{path}: is missing or damaged; start a new run with 'tandem fleet run'.") from None


def read_nodes(path: Path, size: int) -> dict[int, int]:
    """Read the Flower node of each device from a JSON file such as {"0": 1234, "1": 5678}."""
    try:
        nodes = {int(device): int(node) for device, node in json.loads(path.read_text(encoding="utf-8")).items()}
    except OSError as error:
        raise InputError(f"--nodes {path}: cannot be read ({error.strerror}); check the path.") from None
    except (ValueError, AttributeError, TypeError):
        raise InputError(f'--nodes {path}: is not JSON such as {{"0": 1234, "1": 5678}}; correct the file.') from None
    for device in range(size):
        if device not in nodes:
            raise InputError(f"--nodes {path}: has no node for device {device}; the fleet has 0 to {size - 1}.")
    if len(set(nodes.values())) < len(nodes) or len(nodes) > size:
        raise InputError(f"--nodes {path}: has a node twice, or more nodes than the fleet's {size} devices.")
    return nodes
