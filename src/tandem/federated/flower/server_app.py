"""A fleet's run, inside the process that Flower starts for its server."""

from __future__ import annotations

from pathlib import Path

from flwr.serverapp import Grid

from tandem.errors import InputError
from tandem.federated.fleet.config import FAILURE, read_problem, read_settings
from tandem.federated.fleet.runner import play_into
from tandem.federated.flower.transport import GridCarrier


def run_fleet(grid: Grid, folder: str) -> None:
    """Play the run that the folder describes; what goes wrong is left there in a sentence."""
    place = Path(folder)
    try:
        settings = read_settings(place)
        problem = read_problem(place, settings.seed)
        carry = GridCarrier(grid, problem.system.size, settings.deadline_s, settings.nodes)
        there = carry.wait(settings.patience_s)
        if there == 0:
            raise InputError(f"no device was there within {settings.patience_s:g} s; start them, or raise --wait.")
        play_into(place, settings, problem, carry)
    except Exception as error:
        (place / FAILURE).write_text(f"{error or type(error).__name__}\n", encoding="utf-8")
        raise
