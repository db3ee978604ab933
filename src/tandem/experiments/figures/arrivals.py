"""Hypervolume and sparsity over the mean arrival rate: the paper's Fig. 5."""

from __future__ import annotations

from pathlib import Path

from tandem.experiments.claims import (
    Algorithms,
    Claim,
    Experiment,
    ReportSection,
    Results,
    check_claim,
    check_close,
    describe_by_value,
)
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PROPOSED, RANDOM, SCALARISED, label
from tandem.experiments.scale import Scale
from tandem.experiments.sweep_results import (
    HYPERVOLUME,
    SPARSITY,
    SweepResults,
    claim_leads,
    competitors,
    describe_margin,
)
from tandem.experiments.trial import Trial
from tandem.stats import Estimate, difference, mean_relative_gain

TITLE = "Hypervolume and sparsity over the arrival rate"
PAPERS_GAIN = 0.16  # of C-MOPPO over PG-MORL, mean over all rates


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Every algorithm at every rate."""
    return SweepResults(scale, algorithms, "rate", scale.rates, {}).all_trials()


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    swept = SweepResults(scale, algorithms, "rate", scale.rates, results)
    return ReportSection(
        name="arrivals",
        title=TITLE,
        about="The paper's Fig. 5: each algorithm at each mean rate of requests (per second and device).",
        claims=(*_of_the_paper(swept), *_of_ours(swept)),
        tables=(
            swept.table(HYPERVOLUME, "Hypervolume by arrival rate"),
            swept.table(SPARSITY, "Sparsity by arrival rate"),
        ),
        figures=(swept.write(out, "arrivals", "mean arrival rate (requests/s)"),),
    )


def _of_the_paper(swept: SweepResults) -> list[Claim]:
    rising_and_falling = [name for name in (PROPOSED, GUIDED, SCALARISED) if name in swept.algorithms]
    humps = {name: _hump(swept, name) for name in rising_and_falling}
    rises = {n: swept.first_to_last(SPARSITY, n) for n in (SCALARISED, EVOLVED) if n in swept.algorithms}
    return [
        check_claim(
            "Hypervolume of C-MOPPO, PG-MORL and S-PPO first rises with the rate, then falls.",
            "Rise to the highest and fall from it: "
            + "; ".join(f"{label(name)} {rise} and {fall}" for name, (rise, fall) in humps.items()),
            *(part for hump in humps.values() for part in hump),
        ),
        claim_leads(swept, HYPERVOLUME, PROPOSED, "C-MOPPO has the highest hypervolume at every rate."),
        _mean_gain(swept, PROPOSED, "C-MOPPO is about 16 % above PG-MORL, the second best, on average."),
        check_claim(
            "S-PPO comes next, slightly ahead of MOEA/D.",
            describe_margin(swept, HYPERVOLUME, SCALARISED, EVOLVED),
            *swept.ahead(HYPERVOLUME, SCALARISED, EVOLVED),
        ),
        check_claim(
            "R+PPO is the worst at every rate.",
            "; ".join(describe_margin(swept, HYPERVOLUME, other, RANDOM) for other in competitors(swept, RANDOM)),
            *(margin for other in competitors(swept, RANDOM) for margin in swept.ahead(HYPERVOLUME, other, RANDOM)),
        ),
        check_claim(
            "Sparsity of S-PPO and MOEA/D rises with the rate.",
            f"From the lowest rate to the highest by {describe_by_value(rises)}.",
            *rises.values(),
        ),
        claim_leads(swept, SPARSITY, PROPOSED, "C-MOPPO has the lowest sparsity at every rate."),
    ]


def _of_ours(swept: SweepResults) -> list[Claim]:
    if OURS not in swept.algorithms:
        return []
    return [
        claim_leads(swept, HYPERVOLUME, OURS, "Ours: Tandem has the highest hypervolume at every rate.", everyone=True),
        _mean_gain(swept, OURS, "Ours: Tandem is at least 16 % above PG-MORL on average.", at_least=True),
    ]


def _hump(swept: SweepResults, algorithm: str) -> tuple[Estimate, Estimate]:
    """From the lowest rate up to the rate with the highest hypervolume, and from there down to the highest rate."""
    line = swept.line(HYPERVOLUME, algorithm)
    best = max(range(len(line)), key=lambda place: line[place].value)
    first, top, last = (swept.seeds(HYPERVOLUME, algorithm, swept.values[place]) for place in (0, best, -1))
    return difference(top, first), difference(top, last)


def _mean_gain(swept: SweepResults, algorithm: str, stated: str, at_least: bool = False) -> Claim:
    if not {algorithm, GUIDED} <= set(swept.algorithms):
        return check_claim(stated, "")
    both = ([swept.seeds(HYPERVOLUME, name, value) for value in swept.values] for name in (algorithm, GUIDED))
    gained = mean_relative_gain(*both)
    found = f"{gained.scaled(100)} %"
    if at_least:
        return check_claim(
            stated, found, Estimate(*(end - PAPERS_GAIN for end in (gained.value, gained.low, gained.high)))
        )
    close = check_close(stated, gained, PAPERS_GAIN, 0.25)
    return Claim(stated, found, close.verdict)


ARRIVALS = Experiment("arrivals", TITLE, trials, make_section)
