"""Scenarios: YAML files, presets and device profiles, validated into an immutable ``Scenario``."""

from tandem.scenario.device_table import DeviceTable, build_device_table
from tandem.scenario.devices import device_profiles
from tandem.scenario.loader import dump_scenario, load_scenario, preset_names
from tandem.scenario.schema import Scenario
from tandem.scenario.traces import Trace, read_trace

__all__ = [
    "DeviceTable",
    "Scenario",
    "Trace",
    "build_device_table",
    "device_profiles",
    "dump_scenario",
    "load_scenario",
    "preset_names",
    "read_trace",
]
