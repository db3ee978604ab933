"""Scales of the reproduction, from a quick check to the whole evaluation: scales/smoke.yaml, cpu.yaml, full.yaml."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from pydantic import Field

from tandem.errors import InputError, did_you_mean
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.trial import Trial, freeze
from tandem.io.yaml_reader import read_yaml
from tandem.learn.registry import make_config
from tandem.scenario.base import ConfigModel

SCALES = ("smoke", "cpu", "full")
Changes = Mapping[str, Any]  # of hyperparameters, by name
NO_OVERRIDES: Mapping[str, Any] = {}


class Budget(ConfigModel):
    """The length and the number of training runs, and their hyperparameters."""

    budget: int  # environment rounds of every training, the same for every algorithm
    seeds: int
    curve_points: int  # points of the learning curve on the paper's fleet
    config: Changes = Field(default_factory=dict)  # hyperparameters of every algorithm
    algorithm_config: Mapping[str, Changes] = Field(default_factory=dict)  # of single algorithms, by name


class TaskBudget(Budget):
    """The changes of a scale where accuracy is measured on a task.

    A round with real models costs as much as thousands of simulated ones, so there are fewer rounds, in smaller steps,
    and fewer candidates for a front.
    """

    episodes: int  # episodes per policy when a front is evaluated
    worlds: int  # realisations of the drift that the calibration averages over
    calibration_rounds: int | None = None  # rounds of each realisation; None means the length of an episode
    long_budget: Budget | None = None  # for experiments without an oracle, whose training runs are cheap


class Hardness(ConfigModel):
    """A system whose constraints are more or less hard to keep."""

    name: str
    overrides: Mapping[str, Any]  # of the scenario ``paper``, by the path of the field


class LiteralGrid(ConfigModel):
    """The settings of the experiment ``literal``: every size with every hardness."""

    sizes: tuple[int, ...]  # numbers of devices
    hardness: tuple[Hardness, ...]


class Scale(Budget):
    """The swept values, and the length and number of training runs."""

    name: str
    summary: str
    sizes: tuple[int, ...]  # swept numbers of devices
    rates: tuple[float, ...]  # swept request rates, per second
    betas: tuple[float, ...]
    size: int  # number of devices where it is not swept
    rate: float
    preset: str
    literal: LiteralGrid
    tasks: Mapping[str, TaskBudget] = Field(default_factory=dict, repr=False)  # by the task's name
    reward_sources: tuple[RewardSource, ...] = ()  # on a task: one per mapping, the paper's first
    long_budget: Scale | None = Field(default=None, repr=False)  # on a task, for experiments without an oracle

    def task(self, name: str) -> TaskBudget:
        """Return the budget on a task. Raises InputError for a task that this scale does not have."""
        if name not in self.tasks:
            possible = [scale for scale in SCALES if name in load_scale(scale).tasks]
            fix = f"use --scale {' or '.join(possible)}" if possible else f"choose {' or '.join(self.tasks)}"
            raise InputError(f"--task {name}: not available at the scale {self.name}; {fix}.")
        return self.tasks[name]

    def for_task(self, task: str, reward_sources: Sequence[RewardSource]) -> Scale:
        """Return this scale with accuracy measured on a task."""
        own = self.task(task)
        scale = self._with_budget(own, reward_sources)
        if own.long_budget is None:
            return scale
        return scale.model_copy(update={"long_budget": self._with_budget(own.long_budget, reward_sources)})

    def _with_budget(self, own: Budget, reward_sources: Sequence[RewardSource]) -> Scale:
        configs = {
            name: {**self.algorithm_config.get(name, {}), **changes} for name, changes in own.algorithm_config.items()
        }
        return self.model_copy(
            update={
                "budget": own.budget,
                "seeds": own.seeds,
                "curve_points": own.curve_points,
                "config": {**self.config, **own.config},
                "algorithm_config": {**self.algorithm_config, **configs},
                "reward_sources": tuple(reward_sources),
            }
        )

    def default_trials(self, algorithms: Sequence[str]) -> list[Trial]:
        """Return the trials of algorithms on the paper's fleet, for all seeds."""
        return [self.trial(algorithm, seed) for algorithm in algorithms for seed in range(self.seeds)]

    def trial(
        self,
        algorithm: str,
        seed: int,
        size: int | None = None,
        rate: float | None = None,
        reward_source: RewardSource | None = None,
        curve_points: int | None = None,
        overrides: Mapping[str, Any] = NO_OVERRIDES,
        **changes: Any,
    ) -> Trial:
        """Return a trial at this scale. ``overrides`` change the scenario, ``changes`` the hyperparameters.

        Changes that repeat a default are removed, so that equal training runs are equal trials. Only the paper's fleet
        has a learning curve of several points.
        """
        usual = {"budget": self.budget, **self.config, **self.algorithm_config.get(algorithm, {})}
        defaults = make_config(algorithm, self.preset, usual)
        unusual = {name: value for name, value in changes.items() if getattr(defaults, name) != value}
        size, rate = size or self.size, rate or self.rate
        swept = bool(unusual or overrides) or (size, rate) != (self.size, self.rate)
        return Trial(
            algorithm=algorithm,
            seed=seed,
            size=size,
            rate=rate,
            preset=self.preset,
            config=tuple(sorted({**usual, **unusual}.items())),
            curve_points=curve_points or (1 if swept else self.curve_points),
            reward_source=reward_source or next(iter(self.reward_sources), None),
            overrides=freeze(overrides),
        )


@functools.cache
def load_scale(name: str) -> Scale:
    """Load a scale by its name: smoke, cpu or full."""
    if name not in SCALES:
        raise InputError(f"--scale {name}: unknown scale; {did_you_mean(name, SCALES)}.")
    path = resources.files("tandem.experiments") / "scales" / f"{name}.yaml"
    return Scale.model_validate({"name": name, **read_yaml(path.read_text("utf-8"))})
