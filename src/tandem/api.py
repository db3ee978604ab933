"""The public functions that build systems, connected to the federated simulation.

``tandem.feel`` and ``tandem.runs`` do not import ``tandem.federated``; their functions take ``build_system`` as an
argument. Here it defaults to ``tandem.federated.build.build_system``, so that scenarios with a task are supported.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from tandem import runs
from tandem.federated.build import build_system
from tandem.federated.fidelity import Fidelity
from tandem.feel.gym import FeelEnv, FeelVectorEnv
from tandem.feel.state import FleetState, RoundOutcome
from tandem.runs.simulation import History, MeasurementReport
from tandem.scenario import Scenario, build_device_table

P = ParamSpec("P")
T = TypeVar("T")


def _measuring(function: Callable[P, T]) -> Callable[P, T]:
    """Give a function's argument ``build_system`` a default that measures accuracy on a scenario's task."""

    @functools.wraps(function)
    def with_builder(*args: P.args, **kwargs: P.kwargs) -> T:
        kwargs.setdefault("build_system", build_system)
        return function(*args, **kwargs)

    return with_builder


def _summarise_fidelity(scenario: Scenario, histories: Sequence[History]) -> dict[str, Any]:
    """Summarise how well the mapping's estimate follows the accuracy measured in these episodes."""
    assert scenario.accuracy.task is not None
    fidelity = Fidelity.from_history(outcome for _, outcome in histories)
    return {
        "task": scenario.accuracy.task.kind,
        "estimated_accuracy": fidelity.summary(build_device_table(scenario).names),
    }


def _write_fidelity_figure(path: Path, title: str, states: FleetState, outcome: RoundOutcome) -> None:
    from tandem.federated.plots import write_fidelity_figure  # Matplotlib takes a while to import

    write_fidelity_figure(path, title, states, outcome)


open_run = _measuring(runs.open_run)
resume = _measuring(runs.resume)
train = _measuring(runs.train)
simulate_to = functools.partial(
    _measuring(runs.simulate_to), measurement=MeasurementReport(_summarise_fidelity, _write_fidelity_figure)
)
make_env = functools.partial(FeelEnv, build_system=build_system)
make_vector_env = functools.partial(FeelVectorEnv, build_system=build_system)

__all__ = ["build_system", "make_env", "make_vector_env", "open_run", "resume", "simulate_to", "train"]
