"""How much of the paper's evaluation to run: all of it on a GPU, less of it on two cores, next to nothing in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tandem.errors import InputError, did_you_mean
from tandem.experiments.reward_source import Ground
from tandem.experiments.trial import Cell
from tandem.learn.registry import choose_options

Changes = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to train, how often, and with which options."""

    rounds: int
    seeds: int
    marks: int
    options: Changes = field(default_factory=dict)  # of every algorithm
    own_options: Mapping[str, Changes] = field(default_factory=dict)  # of some, by name


@dataclass(frozen=True, kw_only=True)
class TaskScale(Effort):
    """What is else at a scale where accuracy is measured on a task: a round of real models costs what thousands of
    simulated ones do, so there are fewer, in smaller steps, and fewer candidates for a front."""

    episodes: int  # that each policy of a front is measured by
    worlds: int  # that the calibration averages over
    calibration_rounds: int | None = None  # in each world; as many as an episode has if not given
    without_oracle: Effort | None = None  # where none is compared with: what learns from estimates may learn longer


@dataclass(frozen=True)
class Scale:
    """What is swept, for how long and how often."""

    name: str
    summary: str
    rounds: int  # the budget of every training, of whatever algorithm
    seeds: int
    sizes: tuple[int, ...]  # devices
    rates: tuple[float, ...]  # requests per second
    betas: tuple[float, ...]
    size: int  # where it is not swept
    rate: float
    preset: str
    marks: int  # measurements on the way, where nothing is swept
    swept_marks: int  # and where something is
    options: Changes = field(default_factory=dict)  # of every algorithm
    own_options: Mapping[str, Changes] = field(default_factory=dict)  # of some, by name
    tasks: Mapping[str, TaskScale] = field(default_factory=dict, repr=False)  # by the task's name
    grounds: tuple[Ground, ...] = ()  # on a task: a mapping each, the first the paper's
    longer: Scale | None = field(default=None, repr=False)  # on a task, for what no oracle is compared with

    def task(self, name: str) -> TaskScale:
        """What is else on a task."""
        if name not in self.tasks:
            able = [scale.name for scale in SCALES.values() if name in scale.tasks]
            fix = f"use --scale {' or '.join(able)}" if able else f"choose {' or '.join(self.tasks)}"
            raise InputError(f"--task {name}: is not for the scale {self.name}; {fix}.")
        return self.tasks[name]

    def on(self, task: str, grounds: Sequence[Ground]) -> Scale:
        """The same on a task."""
        own = self.task(task)
        longer = None if own.without_oracle is None else self._with(own.without_oracle, grounds)
        return replace(self._with(own, grounds), longer=longer)

    def _with(self, own: Effort, grounds: Sequence[Ground]) -> Scale:
        options = {name: {**self.own_options.get(name, {}), **changes} for name, changes in own.own_options.items()}
        return replace(
            self,
            rounds=own.rounds,
            seeds=own.seeds,
            marks=own.marks,
            options={**self.options, **own.options},
            own_options={**self.own_options, **options},
            grounds=tuple(grounds),
        )

    def unswept(self, algorithms: Sequence[str]) -> list[Cell]:
        """Every algorithm on the paper's fleet."""
        return [self.cell(algorithm, seed) for algorithm in algorithms for seed in range(self.seeds)]

    def cell(
        self,
        algorithm: str,
        seed: int,
        size: int | None = None,
        rate: float | None = None,
        ground: Ground | None = None,
        marks: int | None = None,
        **more: Any,
    ) -> Cell:
        """A training at this scale; the same cell for whoever asks for the same thing."""
        usual = {"rounds": self.rounds, **self.options, **self.own_options.get(algorithm, {})}
        defaults = choose_options(algorithm, self.preset, usual)
        unusual = {name: value for name, value in more.items() if getattr(defaults, name) != value}
        changes = {**usual, **unusual}  # what is said to be as usual is usual
        size, rate = size or self.size, rate or self.rate
        swept = bool(unusual) or (size, rate) != (self.size, self.rate)
        return Cell(
            algorithm=algorithm,
            seed=seed,
            size=size,
            rate=rate,
            preset=self.preset,
            options=tuple(sorted(changes.items())),
            marks=marks or (self.swept_marks if swept else self.marks),
            ground=ground or next(iter(self.grounds), None),
        )


def _with_population(every: Changes, more: Mapping[str, Changes]) -> dict[str, Changes]:
    """The options of every algorithm: those that train a population have some in common."""
    return {name: {**(every if name != "tandem" else {}), **changes} for name, changes in more.items()}


_TINY_POPULATION = {"preferences": 3, "archive": 8, "episodes": 1}
SMOKE = Scale(
    name="smoke",
    summary="minutes on two cores: whether everything runs, not how well",
    rounds=12_000,
    seeds=2,
    sizes=(2, 3),
    rates=(4.0, 6.0),
    betas=(0.5, 0.9),
    size=3,
    rate=6.0,
    preset="default",
    marks=2,
    swept_marks=1,
    options={"validation_episodes": 1},
    own_options=_with_population(
        _TINY_POPULATION,
        {
            "tandem": {"episodes": 4, "divisions": 5},
            "c-moppo": {"extended": 1, "extension_steps": 4},
            "pg-morl": {"tasks": 3, "generation_steps": 4, "buffer_count": 6},
            "moea-d": {"population": 6, "neighbours": 3},
            "nsga2": {"population": 6},
            "s-ppo": {},
            "r-ppo": {},
        },
    ),
    tasks=dict.fromkeys(
        ("digits", "cifar10"),
        TaskScale(
            rounds=5000,
            seeds=2,
            marks=2,
            episodes=1,
            worlds=1,
            calibration_rounds=9,
            options={},
            own_options={"tandem": {"divisions": 2}},
        ),
    ),
)
CPU = Scale(
    name="cpu",
    summary="an hour or two on two cores: a fifth of the paper's rounds, three seeds",
    rounds=200_000,
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
        "digits": TaskScale(
            rounds=40_000,
            seeds=3,
            marks=3,
            episodes=3,
            worlds=4,
            options={"validation_episodes": 2},
            own_options=_with_population(
                {"preferences": 6, "archive": 18, "episodes": 2},
                {
                    "tandem": {"episodes": 8, "divisions": 5},
                    "c-moppo": {"extended": 2, "extension_steps": 5},
                    "pg-morl": {"tasks": 6, "generation_steps": 5},
                    "moea-d": {"population": 18, "neighbours": 6},
                    "nsga2": {"population": 18},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
        )
    },
)
PAPER = Scale(
    name="paper",
    summary="the paper's rounds and seeds, for a GPU",
    rounds=1_000_000,
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
        "digits": TaskScale(
            rounds=300_000,
            seeds=10,
            marks=6,
            episodes=8,
            worlds=8,
            options={"validation_episodes": 3},
            own_options=_with_population(
                {"archive": 50},
                {
                    "tandem": {"divisions": 9},
                    "c-moppo": {"extension_steps": 8},
                    "pg-morl": {"generation_steps": 8},
                    "moea-d": {},
                    "nsga2": {},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
        ),
        "cifar10": TaskScale(
            rounds=72_000,
            seeds=3,
            marks=3,
            episodes=2,
            worlds=4,
            options={"validation_episodes": 1},
            own_options=_with_population(
                {"preferences": 6, "archive": 12, "episodes": 1},
                {
                    "tandem": {"episodes": 4, "divisions": 4},
                    "c-moppo": {"extended": 2, "extension_steps": 6},
                    "pg-morl": {"tasks": 6, "generation_steps": 6},
                    "moea-d": {"population": 12, "neighbours": 4},
                    "nsga2": {"population": 12},
                    "s-ppo": {},
                    "r-ppo": {},
                },
            ),
            without_oracle=Effort(
                rounds=1_000_000,
                seeds=3,
                marks=1,
                own_options=_with_population(
                    {"archive": 24},
                    {
                        "tandem": {"divisions": 6},
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
SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def scale_named(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise InputError(f"scale {name}: is not known; {did_you_mean(name, SCALES)}.")
    return SCALES[name]
