"""Hypervolume and sparsity over the number of devices: the paper's Fig. 4."""

from __future__ import annotations

from pathlib import Path

from tandem.experiments.claims import (
    Algorithms,
    Claim,
    Experiment,
    ReportSection,
    Results,
    Table,
    check_claim,
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
from tandem.stats import relative_gain

TITLE = "Hypervolume and sparsity over the number of devices"
MANY = 20  # devices, from which on the paper has MOEA/D denser than PG-MORL


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """Every algorithm at every size."""
    return SweepResults(scale, algorithms, "size", scale.sizes, {}).all_trials()


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    swept = SweepResults(scale, algorithms, "size", scale.sizes, results)
    return ReportSection(
        name="devices",
        title=TITLE,
        about="The paper's Fig. 4: each algorithm at each fleet size, at equal rounds.",
        claims=(*_of_the_paper(swept), *_of_ours(swept)),
        tables=(
            swept.table(HYPERVOLUME, "Hypervolume by number of devices"),
            swept.table(SPARSITY, "Sparsity by number of devices"),
            _times(swept),
        ),
        figures=(swept.write(out, "devices", "devices"),),
    )


def _of_the_paper(swept: SweepResults) -> list[Claim]:
    many = [size for size in swept.values if size >= MANY] or [swept.values[-1]]
    falls = {name: swept.first_to_last(HYPERVOLUME, name).scaled(-1) for name in swept.algorithms}
    rises = {name: swept.first_to_last(SPARSITY, name) for name in swept.algorithms}
    least, most = swept.values[0], swept.values[-1]
    return [
        check_claim(
            "Hypervolume falls for all algorithms as devices are added.",
            f"From {least} to {most} devices it falls by {describe_by_value(falls)}.",
            *falls.values(),
        ),
        claim_leads(swept, HYPERVOLUME, PROPOSED, "C-MOPPO has the highest hypervolume at every size."),
        check_claim(
            "PG-MORL comes second but falls behind MOEA/D at 30 devices.",
            describe_margin(swept, HYPERVOLUME, EVOLVED, GUIDED, [most]),
            *swept.ahead(HYPERVOLUME, EVOLVED, GUIDED, [most]),
        ),
        check_claim(
            "R+PPO is the worst at every size.",
            "; ".join(describe_margin(swept, HYPERVOLUME, other, RANDOM) for other in competitors(swept, RANDOM)),
            *(margin for other in competitors(swept, RANDOM) for margin in swept.ahead(HYPERVOLUME, other, RANDOM)),
        ),
        check_claim(
            "Sparsity rises for all algorithms as devices are added.",
            f"From {least} to {most} devices it rises by {describe_by_value(rises)}.",
            *rises.values(),
        ),
        claim_leads(swept, SPARSITY, PROPOSED, "C-MOPPO has the lowest sparsity at every size."),
        check_claim(
            f"MOEA/D is denser than PG-MORL from {MANY} devices on.",
            describe_margin(swept, SPARSITY, EVOLVED, GUIDED, many),
            *swept.ahead(SPARSITY, EVOLVED, GUIDED, many),
        ),
        check_claim(
            "S-PPO has the highest sparsity.",
            "; ".join(describe_margin(swept, SPARSITY, other, SCALARISED) for other in competitors(swept, SCALARISED)),
            *(
                margin
                for other in competitors(swept, SCALARISED)
                for margin in swept.ahead(SPARSITY, other, SCALARISED)
            ),
        ),
    ]


def _of_ours(swept: SweepResults) -> list[Claim]:
    if OURS not in swept.algorithms:
        return []
    return [
        claim_leads(swept, HYPERVOLUME, OURS, "Ours: Tandem has the highest hypervolume at every size.", everyone=True)
    ]


def _times(swept: SweepResults) -> Table:
    rows = []
    for name in swept.algorithms:
        times = [swept.mean("wall_s", name, size).value for size in swept.values]
        ratio = relative_gain(
            swept.seeds("wall_s", name, swept.values[-1]), swept.seeds("wall_s", name, swept.scale.size)
        )
        rows.append((label(name), *(f"{time:.0f}" for time in times), f"{1 + ratio.value:.2f}"))
    last = f"{swept.values[-1]} devices against {swept.scale.size}"
    headings = ("", *(f"{size}" for size in swept.values), last)
    return Table("Seconds for one training, its share where seeds are trained together", headings, tuple(rows))


DEVICES = Experiment("devices", TITLE, trials, make_section)
