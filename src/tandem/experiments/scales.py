"""How much of the paper's evaluation to run: all of it on a GPU, less of it on two cores, next to nothing in a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tandem.errors import InputError
from tandem.experiments.cells import Cell
from tandem.learn.presets import choose_options
from tandem.scenario.wording import did_you_mean

Changes = Mapping[str, Any]


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

    def unswept(self, algorithms: Sequence[str]) -> list[Cell]:
        """Every algorithm on the paper's fleet."""
        return [self.cell(algorithm, seed) for algorithm in algorithms for seed in range(self.seeds)]

    def cell(self, algorithm: str, seed: int, size: int | None = None, rate: float | None = None, **more: Any) -> Cell:
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
            marks=self.swept_marks if swept else self.marks,
        )


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
    own_options={
        "tandem": {"episodes": 4, "divisions": 5},
        "c-moppo": {**_TINY_POPULATION, "extended": 1, "extension_steps": 4},
        "pg-morl": {**_TINY_POPULATION, "tasks": 3, "generation_steps": 4, "buffer_count": 6},
        "moea-d": {**_TINY_POPULATION, "population": 6, "neighbours": 3},
        "nsga2": {**_TINY_POPULATION, "population": 6},
        "s-ppo": _TINY_POPULATION,
        "r-ppo": _TINY_POPULATION,
    },
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
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}


def scale_named(name: str) -> Scale:
    """The scale of that name."""
    if name not in SCALES:
        raise InputError(f"scale {name}: is not known; {did_you_mean(name, SCALES)}.")
    return SCALES[name]
