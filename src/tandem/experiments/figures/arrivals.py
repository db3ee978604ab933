"""Hypervolume and sparsity over the mean arrival rate: the paper's Fig. 5."""

from __future__ import annotations

from pathlib import Path

from tandem.experiments.claims import EVERY, GOAL, Claim, Hump, MeanGain, Ordering, Trend, check_claims
from tandem.experiments.experiment import Algorithms, Experiment, Results
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PAPERS, PROPOSED, RANDOM, SCALARISED
from tandem.experiments.report import ReportSection
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

NAME, TITLE = "arrivals", "Hypervolume and sparsity over the arrival rate"
PAPERS_GAIN = 0.16  # of C-MOPPO over PG-MORL, mean over all rates
CLAIMS = (
    Claim(
        "arrivals-hump",
        "Hypervolume of C-MOPPO, PG-MORL and S-PPO first rises with the rate, then falls.",
        HYPERVOLUME,
        Hump((PROPOSED, GUIDED, SCALARISED)),
    ),
    Claim(
        "arrivals-c-moppo-highest",
        "C-MOPPO has the highest hypervolume at every rate.",
        HYPERVOLUME,
        Ordering((PROPOSED,), PAPERS),
    ),
    Claim(
        "arrivals-c-moppo-gain",
        "C-MOPPO is about 16 % above PG-MORL, the second best, on average.",
        HYPERVOLUME,
        MeanGain(PROPOSED, GUIDED, PAPERS_GAIN, tolerance=0.25),
        paper="16 %",
        unit="%",
    ),
    Claim(
        "arrivals-s-ppo-third",
        "S-PPO comes next, slightly ahead of MOEA/D.",
        HYPERVOLUME,
        Ordering((SCALARISED,), (EVOLVED,)),
    ),
    Claim("arrivals-r-ppo-worst", "R+PPO is the worst at every rate.", HYPERVOLUME, Ordering(PAPERS, (RANDOM,))),
    Claim(
        "arrivals-sparsity-rises",
        "Sparsity of S-PPO and MOEA/D rises with the rate.",
        SPARSITY,
        Trend((SCALARISED, EVOLVED)),
    ),
    Claim(
        "arrivals-c-moppo-densest",
        "C-MOPPO has the lowest sparsity at every rate.",
        SPARSITY,
        Ordering((PROPOSED,), PAPERS, lower=True),
    ),
    Claim(
        "arrivals-pc-ppo-highest",
        "PC-PPO has the highest hypervolume at every rate.",
        HYPERVOLUME,
        Ordering((OURS,), EVERY),
        paper=GOAL,
    ),
    Claim(
        "arrivals-pc-ppo-gain",
        "PC-PPO is at least 16 % above PG-MORL on average.",
        HYPERVOLUME,
        MeanGain(OURS, GUIDED, PAPERS_GAIN),
        paper=f"{GOAL}: at least 16 %",
        unit="%",
    ),
)


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Return the trials of every algorithm at every rate."""
    return sweep_trials(scale, algorithms, "rate", scale.rates)


def collect(scale: Scale, algorithms: Algorithms, results: Results, folder: Path) -> Data:
    """Collect the metrics of every trial."""
    return {NAME: sweep_rows(trials(scale, algorithms), results, "rate")}


def make_section(scale: Scale, data: Data, out: Path) -> ReportSection:
    """Check the claims, make the tables and draw the figure."""
    samples = Samples.from_rows(data[NAME], METRICS, "rate")
    return ReportSection(
        name=NAME,
        title=TITLE,
        about="The paper's Fig. 5: each algorithm at each mean rate of requests (per second and device).",
        claims=check_claims(CLAIMS, samples),
        tables=(
            sweep_table(samples, HYPERVOLUME, "Hypervolume by arrival rate"),
            sweep_table(samples, SPARSITY, "Sparsity by arrival rate"),
        ),
        figures=(draw_sweep(samples, "mean arrival rate (requests/s)", out, NAME),),
    )


ARRIVALS = Experiment(NAME, TITLE, trials, collect, make_section)
