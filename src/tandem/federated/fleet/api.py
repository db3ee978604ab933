"""The Python interface to fleets: create a run, open an existing one, or build one of its devices.

>>> from pathlib import Path
>>> from tandem.federated.fleet.api import FleetConfig, create_run, open_fleet_run
>>> from tandem.federated.flower.launcher import launch_fleet
>>> from tandem.scenario import load_scenario
>>> scenario = load_scenario("paper", {"accuracy.task": "digits", "fleet.size": 3, "rounds": 5})
>>> run = create_run(scenario, Path("fleets/example"), FleetConfig(policy="threshold"))  # doctest: +SKIP
>>> document = launch_fleet(run)  # doctest: +SKIP
>>> document = launch_fleet(open_fleet_run(Path("fleets/example")))  # resumes a stopped run  # doctest: +SKIP
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tandem.device.hardware import HARDWARE
from tandem.errors import InputError, unknown_name
from tandem.federated.build import build_system
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.config import ENGINES, NODES, FleetConfig, read_config, write_config
from tandem.federated.fleet.decider import find_policy
from tandem.federated.fleet.run_dir import CONFIG, RESULT, SCENARIO
from tandem.federated.fleet.spec import ClientContext, build_spec
from tandem.io.atomic import folder_name, results_folder
from tandem.runs.trace import check_format
from tandem.scenario import Scenario, load_scenario


@dataclass(frozen=True)
class FleetRun:
    """A run that is written to its folder, complete or not."""

    folder: Path
    config: FleetConfig
    scenario: Scenario

    @property
    def size(self) -> int:
        """The number of devices."""
        return self.scenario.fleet.size

    @property
    def finished(self) -> bool:
        """Whether all rounds are done and the result is written."""
        return (self.folder / RESULT).exists()

    def document(self) -> dict[str, Any]:
        """Return the result of a finished run and its configuration, as a JSON document."""
        assert self.scenario.accuracy.task is not None
        superlink = self.config.superlink
        return {
            "scenario": self.scenario.name,
            "policy": self.config.policy,
            "task": self.scenario.accuracy.task.kind,
            "engine": self.config.engine if superlink is None else f"superlink {superlink}",
            "seed": self.config.seed,
            "devices": self.size,
            **json.loads((self.folder / RESULT).read_text(encoding="utf-8")),
            "folder": str(self.folder),
        }


def default_folder(scenario: Scenario, policy: str) -> Path:
    """Return the default folder of a run."""
    return Path("fleets") / f"{folder_name(scenario.name)}-{Path(policy).name}"


def create_run(scenario: Scenario, folder: Path, config: FleetConfig) -> FleetRun:
    """Check a new run and write its folder, which replaces an earlier run; ``launch_fleet`` starts it."""
    check_config(config, scenario)
    results_folder(folder, CONFIG)
    if Path(config.policy).is_dir():  # the server may have another working directory
        config = config.model_copy(update={"policy": str(Path(config.policy).resolve())})
    write_config(folder, config, scenario)
    return FleetRun(folder, config, scenario)


def open_fleet_run(folder: Path) -> FleetRun:
    """Open the run in a folder, to resume it or to read its result."""
    return FleetRun(folder, read_config(folder), load_scenario(folder / SCENARIO))


def build_client(
    scenario: Scenario, number: int, store: Path, seed: int = 0, hardware: str = "simulated"
) -> ClientHandler:
    """Build device ``number`` of a fleet, with its durable state below ``store``."""
    _check_choice("hardware", hardware, HARDWARE)
    if number >= scenario.fleet.size:
        last = scenario.fleet.size - 1
        raise InputError(f"--number {number}: the fleet has devices 0 to {last}; choose one of them.")
    controls = HARDWARE[hardware]()  # raises InputError if it is not available, before the model is prepared
    return ClientHandler(ClientContext.init(build_spec(scenario, seed), number), store, controls)


def check_config(config: FleetConfig, scenario: Scenario) -> None:
    """Raise InputError if the run cannot start; nothing is written."""
    if scenario.accuracy.task is None:
        raise InputError("--task: a fleet trains real models; name a task, such as --task digits.")
    _check_choice("engine", config.engine, ENGINES)
    _check_choice("hardware", config.hardware, HARDWARE)
    _check_choice("node", config.node, NODES)
    if config.engine == "simulation" and config.hardware != "simulated":
        raise InputError(
            f"--hardware {config.hardware}: devices in a simulation share a machine; use --engine deployment."
        )
    if config.nodes is not None and config.superlink is None:
        raise InputError("--nodes: is for nodes that run already; name their SuperLink with --superlink.")
    if config.trace != "none":
        check_format(config.trace)
    find_policy(config, build_system(scenario))


def _check_choice(kind: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise InputError(f"--{kind}: {unknown_name(kind, name, known)}")
