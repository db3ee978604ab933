"""What the user describes: YAML, presets and device profiles, validated into an immutable Scenario."""

from tandem.scenario.device_table import DeviceTable, device_table
from tandem.scenario.devices import device_profiles
from tandem.scenario.loader import dump_scenario, load_scenario, preset_names
from tandem.scenario.schema import Scenario
from tandem.scenario.traces import Trace, read_trace

__all__ = [
    "DeviceTable",
    "Scenario",
    "Trace",
    "device_profiles",
    "device_table",
    "dump_scenario",
    "load_scenario",
    "preset_names",
    "read_trace",
]
