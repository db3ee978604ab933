"""The cases whose results are stored in ``data``: small, and through public functions.

``python tests/golden/golden_cases.py FOLDER`` computes all of them with the present code and writes them to FOLDER. The
stored results change only with a change that is meant to alter behaviour; its commit says why.
"""

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tandem
from tandem.device.hardware import SimulatedHardware
from tandem.federated.build import build_system
from tandem.federated.calibration.driver import calibrate
from tandem.federated.fleet.client_store import ClientHandler
from tandem.federated.fleet.decider import PolicyDecider
from tandem.federated.fleet.messages import Instruction, to_bytes
from tandem.federated.fleet.runner import fleet_table, run_rounds
from tandem.federated.fleet.server import init_server
from tandem.federated.fleet.spec import ClientContext, build_spec
from tandem.io.tables import write_json
from tandem.learn import ALGORITHMS
from tandem.policy import HEURISTICS
from tandem.scenario import load_scenario

DATA = Path(__file__).parent / "data"
SMALL = {"fleet.size": 3, "rounds": 10}
DIGITS = {"accuracy.task": "digits", "fleet.size": 4, "rounds": 12}
TINY = {"num_envs": 2, "update_epochs": 1, "num_minibatches": 2, "validation_episodes": 2}
POPULATION = {**TINY, "budget": 900, "num_preferences": 3, "archive_size": 6}
EVOLUTION = {**POPULATION, "population_size": 4}
TASKS = {"num_tasks": 2, "generation_steps": 3, "buffer_count": 3}
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "pc-ppo": {**TINY, "budget": 300, "preference_divisions": 2, "width": 8},
    "c-moppo": {**POPULATION, "budget": 1500, "num_extended": 1, "extension_steps": 2},
    "pg-morl": {**POPULATION, **TASKS, "num_weights": 6, "num_neighbours": 2, "history_size": 8},
    "s-ppo": POPULATION,
    "r-ppo": POPULATION,
    "moea-d": EVOLUTION,
    "nsga2": EVOLUTION,
}
EXCLUDED = ("reported", "work_s")  # columns of a fleet's trace that are not in the simulator's; the second is a time


def train(algorithm: str) -> dict[str, Any]:
    """Return the front of a small training."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = load_scenario("paper", SMALL)
        run = tandem.train(
            scenario,
            algorithm,
            seed=4,
            out=Path(folder) / "run",
            options={**HYPERPARAMETERS[algorithm], "tolerance": 1.0},
        )
        front = run.front
    return {
        "hypervolume": front.hypervolume,
        "sparsity": front.sparsity,
        "objectives": np.asarray(front.objectives).tolist(),
        "violation_rate": np.asarray(front.violation_rate).tolist(),
        "preferences": [list(policy.preference) for policy in front.policies],
    }


def simulate(heuristic: str, shield: bool) -> dict[str, Any]:
    """Return the summary of a simulation of the paper's fleet."""
    scenario = load_scenario("paper", {"rounds": 30, "shield.enabled": shield})
    return tandem.simulate(tandem.build_system(scenario), HEURISTICS[heuristic](), seeds=range(3)).summary()


def calibrated_constants() -> dict[str, Any]:
    """Return the fits of a short calibration on digits."""
    scenario = load_scenario("paper", DIGITS)
    document = calibrate(scenario, build_system(scenario), worlds=1, rounds=9, seed=3).document()
    return {"pretrained": document["pretrained"], "fits": sorted(document["fits"], key=lambda fit: fit["kind"])}


def fleet_trace() -> dict[str, Any]:
    """Return the trace of a fleet whose clients and server exchange messages without a network."""
    scenario = load_scenario("paper", DIGITS)
    spec = build_spec(scenario, 3)
    with tempfile.TemporaryDirectory() as folder:
        clients = [
            ClientHandler(ClientContext.init(spec, n), Path(folder), SimulatedHardware(), lock_timeout_s=1.0)
            for n in range(spec.system.size)
        ]

        def transport(instructions: Sequence[Instruction]) -> dict[int, bytes | str]:
            return {i.device: clients[i.device].handle(to_bytes(i)) for i in instructions}

        server = init_server(spec, "golden")
        decide = PolicyDecider(spec.system, HEURISTICS["threshold"]())
        rounds = run_rounds(spec, decide, server, spec.system.rounds, transport)
        table = fleet_table(3, [f"device-{n}" for n in range(spec.system.size)], [record for _, record in rounds])
    return {name: np.asarray(column).tolist() for name, column in table.items() if name not in EXCLUDED}


CASES: dict[str, Callable[[], Any]] = {
    "simulate": lambda: {
        name: {shield: simulate(name, shield == "shield") for shield in ("shield", "no-shield")} for name in HEURISTICS
    },
    "train": lambda: {name: train(name) for name in ALGORITHMS},
    "calibrate": calibrated_constants,
    "fleet": fleet_trace,
}


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for case, compute in CASES.items():
        write_json(target / f"{case}.json", compute())
        print(target / f"{case}.json")
