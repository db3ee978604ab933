"""The server's door: Flower's grid in, a fleet's run out."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp


def main(grid: Grid, context: Context) -> None:
    """Play the run that the folder describes."""
    from tandem.federated.flower.server_app import run_fleet

    run_fleet(grid, str(context.run_config["folder"]))


app = ServerApp()
app.main()(main)
