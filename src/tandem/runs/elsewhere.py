"""A run's policies on another scenario than they were trained on."""

from __future__ import annotations

from collections.abc import Sequence

import equinox as eqx
import jax

from tandem.errors import InputError
from tandem.feel.env import reset
from tandem.feel.system import System, build_system
from tandem.policy.neural import NeuralPolicy
from tandem.runs.directory import SCENARIO
from tandem.runs.run import Run
from tandem.scenario import Scenario, load_scenario


def changed(run: Run, overrides: Sequence[str]) -> tuple[Scenario, System]:
    """The run's scenario with some fields changed, as in ``fleet.size=30``; refused if its policies do not fit it."""
    if not overrides:
        return run.scenario, run.system()
    scenario = load_scenario(run.folder / SCENARIO, overrides)
    system = build_system(scenario)
    check_fits(run, system)
    return scenario, system


def check_fits(run: Run, system: System) -> None:
    """Refuse a fleet that the run's policies cannot decide for."""
    before = run.system()
    if not _fits(run.policy(0), system):
        if system.observation != before.observation:
            raise InputError(
                f"{run.folder}: its policies were trained on the {before.observation!r} observation and cannot use the "
                f"{system.observation!r} one; leave observation as it is."
            )
        raise InputError(
            f"{run.folder}: its policies were trained for {before.size} devices and cannot decide for {system.size}; "
            f"train for that size, or use the fleet network, which fits any."
        )


def _fits(policy: NeuralPolicy, system: System) -> bool:
    """Whether the network takes what this fleet has to tell; only shapes are worked out."""

    def decide(key: jax.Array) -> object:
        return policy(system, reset(system, key), key)

    try:
        eqx.filter_eval_shape(decide, jax.random.key(0))
    except (TypeError, ValueError):  # as JAX refuses arrays of other shapes
        return False
    return True
