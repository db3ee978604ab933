"""The number of JAX devices on a CPU."""

from __future__ import annotations

import contextlib
import os

import jax


def use_cores(count: int | None = None) -> None:
    """Make each CPU core a JAX device, so that populations are distributed over them; call it before JAX is used.

    A run that is resumed with another number of devices is still correct, but its numbers may differ in the last bits.
    """
    chosen_by_user = "JAX_NUM_CPU_DEVICES" in os.environ or "device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen_by_user:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, as it is in tests
            jax.config.update("jax_num_cpu_devices", count or os.cpu_count() or 1)  # type: ignore[no-untyped-call]
