"""Shared type aliases of arrays: one value per fleet, or one value per device."""

from __future__ import annotations

from jaxtyping import Array, Bool, Float, Int, Key

Scalar = Float[Array, ""]
Count = Int[Array, ""]
Flag = Bool[Array, ""]
PerDevice = Float[Array, " devices"]
DeviceFlags = Bool[Array, " devices"]
ActionMask = Bool[Array, "devices 2"]  # whether a device may serve, and whether it may train
Objectives = Float[Array, "3"]  # accuracy, -latency (s), -energy (J): everything maximised
RandomKey = Key[Array, ""]

__all__ = ["ActionMask", "Array", "Count", "DeviceFlags", "Flag", "Objectives", "PerDevice", "RandomKey", "Scalar"]
