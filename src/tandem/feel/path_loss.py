"""The channel gain of each device without fading: path loss and shadowing over thermal noise, in double precision.

This module does not import JAX: the deployed scheduler uses it for devices that are new in a fleet.
"""

from __future__ import annotations

import math

import numpy as np

from tandem.scenario.device_table import Column, DeviceTable
from tandem.scenario.schema import Channel

GAIN_LIMITS = (1e-30, 1e30)  # representable in single precision, and far beyond any real channel


def mean_gain(channel: Channel, devices: DeviceTable) -> Column:
    """Compute h / sigma^2 of each device without fading: path loss and shadowing over thermal noise."""
    loss_db = channel.loss_at_1km_db + 10 * channel.loss_exponent * np.log10(devices.distance_m / 1e3)
    return gain_from_db(devices.shadowing_db - loss_db - noise_dbw(channel))


def noise_dbw(channel: Channel) -> float:
    """Compute sigma^2, the thermal noise over the whole band, in dBW."""
    return channel.noise_dbm_per_hz - 30 + channel.noise_figure_db + 10 * math.log10(channel.bandwidth_hz)


def gain_from_db(snr_db: Column) -> Column:
    """Convert h / sigma^2 from dB, within ``GAIN_LIMITS``."""
    return np.clip(10 ** (np.clip(snr_db, -300, 300) / 10), *GAIN_LIMITS)
