"""Reports from states of the simulator, in which power and frequency are normalised, not in watts and hertz."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tandem.feel.state import FleetState
from tandem.feel.system import System
from tandem.serving.messages import Flags, FleetReport


def report_from_state(
    names: Sequence[str], system: System, state: FleetState, present: Flags | None = None
) -> FleetReport:
    """Return the report of a fleet in this state; ``present`` as in ``FleetReport``."""
    devices, last = system.devices, state.last_action
    low_w, high_w = np.asarray(devices.power_min_w), np.asarray(devices.power_max_w)
    low_hz, high_hz = np.asarray(devices.frequency_min_hz), np.asarray(devices.frequency_max_hz)
    return FleetReport(
        names=names,
        round=int(state.round),
        queue=np.asarray(state.queue),
        data=np.asarray(state.data),
        last_duration_s=float(state.last_duration_s),
        last_train=np.asarray(last.train),
        last_power_w=low_w + np.asarray(last.power) * (high_w - low_w),
        last_frequency_hz=low_hz + np.asarray(last.frequency) * (high_hz - low_hz),
        waited_s=np.asarray(state.waited_s),
        data_age_s=np.asarray(state.data_age_s),
        model_age_s=np.asarray(state.model_age_s),
        model_accuracy=np.asarray(state.model_accuracy),
        last_gain=np.asarray(state.last_gain),
        present=present,
    )
