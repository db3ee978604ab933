"""The body of the ServerApp: a fleet's run, in the process that Flower starts for the server."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from tandem.errors import InputError
from tandem.federated.fleet.config import read_config
from tandem.federated.fleet.decider import LoadDecider
from tandem.federated.fleet.run_dir import FAILURE
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.fleet.spec import load_spec
from tandem.federated.flower.transport import FlowerTransport


def run_fleet(grid: Grid, folder: str, load_decider: LoadDecider) -> None:
    """Run the fleet that the folder describes; the message of an error is left there for the launcher."""
    run_folder = Path(folder)
    try:
        config = read_config(run_folder)
        spec = load_spec(run_folder, config.seed)
        deadline_s = config.report_deadline_s(float(spec.system.round_max_s))
        transport = FlowerTransport(grid, spec.system.size, deadline_s, config.nodes)
        if transport.wait_for_devices(config.wait_s) == 0:
            raise InputError(f"no device connected within {config.wait_s:g} s; start the devices, or raise --wait.")
        run_to_folder(run_folder, config, spec, transport, load_decider)
    except Exception as error:
        (run_folder / FAILURE).write_text(f"{error or type(error).__name__}\n", encoding="utf-8")
        raise
