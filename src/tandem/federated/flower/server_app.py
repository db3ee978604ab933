"""A fleet's run, inside the process that Flower starts for its server."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from tandem.errors import InputError
from tandem.federated.fleet.config import FAILURE, read_config, read_spec
from tandem.federated.fleet.runner import run_to_folder
from tandem.federated.flower.transport import FlowerTransport


def run_fleet(grid: Grid, folder: str) -> None:
    """Play the run that the folder describes; what goes wrong is left there in a sentence."""
    place = Path(folder)
    try:
        settings = read_config(place)
        problem = read_spec(place, settings.seed)
        carry = FlowerTransport(grid, problem.system.size, settings.deadline_s, settings.nodes)
        there = carry.wait(settings.patience_s)
        if there == 0:
            raise InputError(f"no device was there within {settings.patience_s:g} s; start them, or raise --wait.")
        run_to_folder(place, settings, problem, carry)
    except Exception as error:
        (place / FAILURE).write_text(f"{error or type(error).__name__}\n", encoding="utf-8")
        raise
