"""Hypervolume and sparsity over the number of devices: the paper's Fig. 4."""

from __future__ import annotations

from pathlib import Path

from tandem.experiments.claims import EVERY, GOAL, Claim, Ordering, Trend, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PAPERS, PROPOSED, RANDOM, SCALARISED, label
from tandem.experiments.report import ReportSection, Table
from tandem.experiments.scale import Scale
from tandem.experiments.sweep_results import (
    HYPERVOLUME,
    METRICS,
    SPARSITY,
    draw_sweep,
    sweep_rows,
    sweep_table,
    sweep_trials,
)
from tandem.experiments.tables import Data, Samples
from tandem.experiments.trial import Trial

NAME, TITLE = "devices", "Hypervolume and sparsity over the number of devices"
CLAIMS = (
    Claim(
        "devices-hypervolume-falls",
        "Hypervolume falls for all algorithms as devices are added.",
        HYPERVOLUME,
        Trend(falls=True),
    ),
    Claim(
        "devices-c-moppo-highest",
        "C-MOPPO has the highest hypervolume at every size.",
        HYPERVOLUME,
        Ordering((PROPOSED,), PAPERS),
    ),
    Claim(
        "devices-moea-d-overtakes",
        "PG-MORL comes second but falls behind MOEA/D at 30 devices.",
        HYPERVOLUME,
        Ordering((EVOLVED,), (GUIDED,), from_value=30),
    ),
    Claim("devices-r-ppo-worst", "R+PPO is the worst at every size.", HYPERVOLUME, Ordering(PAPERS, (RANDOM,))),
    Claim("devices-sparsity-rises", "Sparsity rises for all algorithms as devices are added.", SPARSITY, Trend()),
    Claim(
        "devices-c-moppo-densest",
        "C-MOPPO has the lowest sparsity at every size.",
        SPARSITY,
        Ordering((PROPOSED,), PAPERS, lower=True),
    ),
    Claim(
        "devices-moea-d-denser",
        "MOEA/D is denser than PG-MORL from 20 devices on.",
        SPARSITY,
        Ordering((EVOLVED,), (GUIDED,), lower=True, from_value=20),
    ),
    Claim(
        "devices-s-ppo-sparsest",
        "S-PPO has the highest sparsity.",
        SPARSITY,
        Ordering(PAPERS, (SCALARISED,), lower=True),
    ),
    Claim(
        "devices-pc-ppo-highest",
        "PC-PPO has the highest hypervolume at every size.",
        HYPERVOLUME,
        Ordering((OURS,), EVERY),
        paper=GOAL,
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm at every size."""
    return sweep_trials(scale, algorithms, "size", scale.sizes)


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the metrics of every trial."""
    return {NAME: sweep_rows(trials(scale, algorithms), results, "size")}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the tables and draw the figure."""
    samples = Samples.from_rows(data[NAME], METRICS, "size")
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 4: each algorithm at each fleet size, with the same budget.",
        claims=check_claims(CLAIMS, samples),
        tables=(
            sweep_table(samples, HYPERVOLUME, "Hypervolume by number of devices"),
            sweep_table(samples, SPARSITY, "Sparsity by number of devices"),
            _times(samples, scale.size),
        ),
        figures=(draw_sweep(samples, "devices", out, NAME),),
    )


def _times(samples: Samples, usual: int) -> Table:
    rows = []
    for name in samples.groups:
        times = {size: samples.mean("wall_s", name, size).value for size in samples.values}
        ratio = times[samples.values[-1]] / times[usual]
        rows.append((label(name), *(f"{time:.0f}" for time in times.values()), f"{ratio:.2f}"))
    headings = ("", *(f"{size:g}" for size in samples.values), f"{samples.values[-1]:g} devices relative to {usual}")
    return Table("Seconds per training; its share of the time where seeds train in one program", headings, tuple(rows))


DEVICES = Experiment(NAME, TITLE, trials, collect, make_section)
