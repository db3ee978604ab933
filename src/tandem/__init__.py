"""Tandem: scheduling training and inference on fleets of edge devices."""

from tandem.errors import InputError
from tandem.registration import register
from tandem.scenario import Scenario, load_scenario

__version__ = "0.1.0"

register()

__all__ = ["InputError", "Scenario", "__version__", "load_scenario"]
