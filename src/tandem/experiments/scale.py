"""How much of the paper's evaluation to run: all of it on a GPU, less of it on two cores, next to nothing in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.errors import InputError, did_you_mean
from tandem.experiments.reward_source import RewardSource
from tandem.experiments.trial import Trial
from tandem.learn.registry import make_config

Changes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long to train, how often, and with which options."""

    budget: int
    seeds: int
    marks: int
    config: Changes = field(default_factory=dict)  # of every algorithm
    algorithm_config: Mapping[str, Changes] = field(default_factory=dict)  # of some, by name


@dataclass(frozen=True, kw_only=True)
class TaskBudget(Budget):
    """What is else at a scale where accuracy is measured on a task: a round of real models costs what thousands of
    simulated ones do, so there are fewer, in smaller steps, and fewer candidates for a front."""

    episodes: int  # that each policy of a front is measured by
    worlds: int  # that the calibration averages over
    calibration_rounds: int | None = None  # in each world; as many as an episode has if not given
    without_oracle: Budget | None = None  # where none is compared with: what learns from estimates may learn longer


@dataclass(frozen=True)
class Scale:
    """What is swept, for how long and how often."""

    name: str
    summary: str
    budget: int  # the budget of every training, of whatever algorithm
    seeds: int
    sizes: tuple[int, ...]  # devices
    rates: tuple[float, ...]  # requests per second
    betas: tuple[float, ...]
    size: int  # where it is not swept
    rate: float
    preset: str
    marks: int  # measurements on the way, where nothing is swept
    swept_marks: int  # and where something is
    config: Changes = field(default_factory=dict)  # of every algorithm
    algorithm_config: Mapping[str, Changes] = field(default_factory=dict)  # of some, by name
    tasks: Mapping[str, TaskBudget] = field(default_factory=dict, repr=False)  # by the task's name
    reward_sources: tuple[RewardSource, ...] = ()  # on a task: a mapping each, the first the paper's
    long_budget: Scale | None = field(default=None, repr=False)  # on a task, for what no oracle is compared with

    def task(self, name: str) -> TaskBudget:
        """What is else on a task."""
        if name not in self.tasks:
            able = [scale.name for scale in SCALES.values() if name in scale.tasks]
            fix = f"use --scale {' or '.join(able)}" if able else f"choose {' or '.join(self.tasks)}"
            raise InputError(f"--task {name}: is not for the scale {self.name}; {fix}.")
        return self.tasks[name]

    def for_task(self, task: str, grounds: Sequence[RewardSource]) -> Scale:
        """The same on a task."""
        own = self.task(task)
        longer = None if own.without_oracle is None else self._with(own.without_oracle, grounds)
        return replace(self._with(own, grounds), long_budget=longer)

    def _with(self, own: Budget, grounds: Sequence[RewardSource]) -> Scale:
        options = {
            name: {**self.algorithm_config.get(name, {}), **changes} for name, changes in own.algorithm_config.items()
        }
        return replace(
            self,
            budget=own.budget,
            seeds=own.seeds,
            marks=own.marks,
            config={**self.config, **own.config},
            algorithm_config={**self.algorithm_config, **options},
            reward_sources=tuple(grounds),
        )

    def default_trials(self, algorithms: Sequence[str]) -> list[Trial]:
        """Every algorithm on the paper's fleet."""
        return [self.trial(algorithm, seed) for algorithm in algorithms for seed in range(self.seeds)]

    def trial(
        self,
        algorithm: str,
        seed: int,
        size: int | None = None,
        rate: float | None = None,
        ground: RewardSource | None = None,
        marks: int | None = None,
        **more: Any,
    ) -> Trial:
        """A training at this scale; the same cell for whoever asks for the same thing."""
        usual = {"budget": self.budget, **self.config, **self.algorithm_config.get(algorithm, {})}
        defaults = make_config(algorithm, self.preset, usual)
        unusual = {name: value for name, value in more.items() if getattr(defaults, name) != value}
        changes = {**usual, **unusual}  # what is said to be as usual is usual
        size, rate = size or self.size, rate or self.rate
        swept = bool(unusual) or (size, rate) != (self.size, self.rate)
        return Trial(
            algorithm=algorithm,
            seed=seed,
            size=size,
            rate=rate,
            preset=self.preset,
            config=tuple(sorted(changes.items())),
            marks=marks or (self.swept_marks if swept else self.marks),
            reward_source=ground or next(iter(self.reward_sources), None),
        )


def _with_population(every: Changes, more: Mapping[str, Changes]) -> dict[str, Changes]:
    """The options of every algorithm: those that train a population have some in common."""
    return {name: {**(every if name != "pc-ppo" else {}), **changes} for name, changes in more.items()}


_TINY_POPULATION = {"num_preferences": 3, "archive_size": 8, "num_envs": 1}
SMOKE = Scale(
    name="smoke",
    summary="minutes on two cores: whether everything runs, not how well",
    budget=12_000,
    seeds=2,
    sizes=(2, 3),
    rates=(4.0, 6.0),
    betas=(0.5, 0.9),
    size=3,
    rate=6.0,
    preset="default",
    marks=2,
    swept_marks=1,
    config={"validation_episodes": 1},
    algorithm_config=_with_population(
        _TINY_POPULATION,
        {
            "pc-ppo": {"num_envs": 4, "preference_divisions": 5},
            "c-moppo": {"num_extended": 1, "extension_steps": 4},
            "pg-morl": {"num_tasks": 3, "generation_steps": 4, "buffer_count": 6},
            "moea-d": {"population_size": 6, "num_neighbours": 3},
            "nsga2": {"population_size": 6},
            "s-ppo": {},
            "r-ppo": {},
        },
    ),
    tasks=dict.fromkeys(
        ("digits", "cifar10"),
        TaskBudget(
            budget=5000,
            seeds=2,
            marks=2,
            episodes=1,
            worlds=1,
            calibration_rounds=9,
            config={},
            algorithm_config={"pc-ppo": {"preference_divisions": 2}},
        ),
    ),
)
CPU = Scale(
    name="cpu",
    summary="an hour or two on two cores: a fifth of the paper's rounds, three seeds",
    budget=200_000,
    seeds=3,
    sizes=(5, 10, 20, 30),
    rates=(2.0, 4.0, 6.0, 8.0, 10.0),
    betas=(0.5, 0.7, 0.9),
    size=10,
    rate=6.0,
    preset="quick",
    marks=4,
    swept_marks=1,
    tasks={
        "digits": TaskBudget(
            budget=40_000,
            seeds=3,
            marks=3,
            episodes=3,
            worlds=4,
            config={"validation_episodes": 2},
            algorithm_config=_with_population(
                {"num_preferences": 6, "archive_size": 18, "num_envs": 2},
                {
                    "pc-ppo": {"num_envs": 8, "preference_divisions": 5},
                    "c-moppo": {"num_extended": 2, "extension_steps": 5},
                    "pg-morl": {"num_tasks": 6, "generation_steps": 5},
                    "moea-d": {"population_size": 18, "num_neighbours": 6},
                    "nsga2": {"population_size": 18},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
        )
    },
)
FULL = Scale(
    name="full",
    summary="the paper's rounds and seeds, for a GPU",
    budget=1_000_000,
    seeds=10,
    sizes=(5, 10, 15, 20, 25, 30),
    rates=(2.0, 4.0, 6.0, 8.0, 10.0),
    betas=(0.5, 0.6, 0.7, 0.8, 0.9),
    size=10,
    rate=6.0,
    preset="default",
    marks=20,
    swept_marks=5,
    tasks={
        "digits": TaskBudget(
            budget=300_000,
            seeds=10,
            marks=6,
            episodes=8,
            worlds=8,
            config={"validation_episodes": 3},
            algorithm_config=_with_population(
                {"archive_size": 50},
                {
                    "pc-ppo": {"preference_divisions": 9},
                    "c-moppo": {"extension_steps": 8},
                    "pg-morl": {"generation_steps": 8},
                    "moea-d": {},
                    "nsga2": {},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
        ),
        "cifar10": TaskBudget(
            budget=72_000,
            seeds=3,
            marks=3,
            episodes=2,
            worlds=4,
            config={"validation_episodes": 1},
            algorithm_config=_with_population(
                {"num_preferences": 6, "archive_size": 12, "num_envs": 1},
                {
                    "pc-ppo": {"num_envs": 4, "preference_divisions": 4},
                    "c-moppo": {"num_extended": 2, "extension_steps": 6},
                    "pg-morl": {"num_tasks": 6, "generation_steps": 6},
                    "moea-d": {"population_size": 12, "num_neighbours": 4},
                    "nsga2": {"population_size": 12},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
            without_oracle=Budget(
                budget=1_000_000,
                seeds=3,
                marks=1,
                algorithm_config=_with_population(
                    {"archive_size": 24},
                    {
                        "pc-ppo": {"preference_divisions": 6},
                        "c-moppo": {},
                        "pg-morl": {},
                        "moea-d": {},
                        "nsga2": {},
                        "s-ppo": {},
                        "r-ppo": {},
                    },
                ),
            ),
        ),
    },
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, FULL)}


def scale_named(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise InputError(f"scale {name}: is not known; {did_you_mean(name, SCALES)}.")
    return SCALES[name]
