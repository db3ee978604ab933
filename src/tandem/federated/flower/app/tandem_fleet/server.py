"""The ServerApp: runs the fleet over Flower's grid, with the decisions of the deployed scheduler."""

from __future__ import annotations

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp


def main(grid: Grid, context: Context) -> None:
    """Run the fleet that the folder in the run configuration describes: a simulated or a live one."""
    from tandem.federated.flower.server_app import run_fleet
    from tandem.live.flower_app import is_live, run_live
    from tandem.serving.fleet_decider import load_decider

    folder = str(context.run_config["folder"])
    if is_live(folder):
        run_live(grid, folder)
    else:
        run_fleet(grid, folder, load_decider)


app = ServerApp()
app.main()(main)
