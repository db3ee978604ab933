"""The public functions that build systems, connected to the federated simulation.

``tandem.feel`` and ``tandem.runs`` know nothing of federated learning; their functions take ``build_system`` as an
argument. Here it defaults to ``tandem.federated.build.build_system``, so that a scenario with a task just works.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tandem import runs
from tandem.federated.build import build_system
from tandem.feel.gym import FeelEnv, FeelVectorEnv

P = ParamSpec("P")
T = TypeVar("T")


def _measuring(function: Callable[P, T]) -> Callable[P, T]:
    """Give a function's argument ``build_system`` a default that measures accuracy on a scenario's task."""

    @functools.wraps(function)
    def with_builder(*args: P.args, **kwargs: P.kwargs) -> T:
        kwargs.setdefault("build_system", build_system)
        return function(*args, **kwargs)

    return with_builder


open_run = _measuring(runs.open_run)
resume = _measuring(runs.resume)
train = _measuring(runs.train)
make_env = functools.partial(FeelEnv, build_system=build_system)
make_vector_env = functools.partial(FeelVectorEnv, build_system=build_system)

__all__ = ["build_system", "make_env", "make_vector_env", "open_run", "resume", "train"]
