"""Hypervolume and sparsity over the number of devices: the paper's Fig. 4."""

from __future__ import annotations

from pathlib import Path

from tandem.experiments.claims import (
    Algorithms,
    Experiment,
    Results,
    Section,
    Statement,
    Table,
    by_value,
    exceeds,
    judged,
    lead,
    others,
)
from tandem.experiments.plotting import EVOLVED, GUIDED, OURS, PROPOSED, RANDOM, SCALARISED, label
from tandem.experiments.scale import Scale
from tandem.experiments.sweep_results import HYPERVOLUME, SPARSITY, Swept
from tandem.experiments.trial import Cell
from tandem.stats import gain

TITLE = "Hypervolume and sparsity over the number of devices"
MANY = 20  # devices, from which on the paper has MOEA/D denser than PG-MORL


def cells(scale: Scale, algorithms: Algorithms) -> list[Cell]:
    """Every algorithm at every size."""
    return Swept(scale, algorithms, "size", scale.sizes, {}).all_cells()


def section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> Section:
    """Write data and figure, and judge."""
    swept = Swept(scale, algorithms, "size", scale.sizes, results)
    return Section(
        name="devices",
        title=TITLE,
        about="The paper's Fig. 4: each algorithm at each fleet size, at equal rounds.",
        statements=(*_of_the_paper(swept), *_of_ours(swept)),
        tables=(
            swept.table(HYPERVOLUME, "Hypervolume by number of devices"),
            swept.table(SPARSITY, "Sparsity by number of devices"),
            _times(swept),
        ),
        figures=(swept.write(out, "devices", "devices"),),
    )


def _of_the_paper(swept: Swept) -> list[Statement]:
    many = [size for size in swept.values if size >= MANY] or [swept.values[-1]]
    falls = {name: swept.first_to_last(HYPERVOLUME, name).scaled(-1) for name in swept.algorithms}
    rises = {name: swept.first_to_last(SPARSITY, name) for name in swept.algorithms}
    least, most = swept.values[0], swept.values[-1]
    return [
        judged(
            "Hypervolume falls for all algorithms as devices are added.",
            f"From {least} to {most} devices it falls by {by_value(falls)}.",
            *falls.values(),
        ),
        lead(swept, HYPERVOLUME, PROPOSED, "C-MOPPO has the highest hypervolume at every size."),
        judged(
            "PG-MORL comes second but falls behind MOEA/D at 30 devices.",
            exceeds(swept, HYPERVOLUME, EVOLVED, GUIDED, [most]),
            *swept.ahead(HYPERVOLUME, EVOLVED, GUIDED, [most]),
        ),
        judged(
            "R+PPO is the worst at every size.",
            "; ".join(exceeds(swept, HYPERVOLUME, other, RANDOM) for other in others(swept, RANDOM)),
            *(margin for other in others(swept, RANDOM) for margin in swept.ahead(HYPERVOLUME, other, RANDOM)),
        ),
        judged(
            "Sparsity rises for all algorithms as devices are added.",
            f"From {least} to {most} devices it rises by {by_value(rises)}.",
            *rises.values(),
        ),
        lead(swept, SPARSITY, PROPOSED, "C-MOPPO has the lowest sparsity at every size."),
        judged(
            f"MOEA/D is denser than PG-MORL from {MANY} devices on.",
            exceeds(swept, SPARSITY, EVOLVED, GUIDED, many),
            *swept.ahead(SPARSITY, EVOLVED, GUIDED, many),
        ),
        judged(
            "S-PPO has the highest sparsity.",
            "; ".join(exceeds(swept, SPARSITY, other, SCALARISED) for other in others(swept, SCALARISED)),
            *(margin for other in others(swept, SCALARISED) for margin in swept.ahead(SPARSITY, other, SCALARISED)),
        ),
    ]


def _of_ours(swept: Swept) -> list[Statement]:
    if OURS not in swept.algorithms:
        return []
    return [lead(swept, HYPERVOLUME, OURS, "Ours: Tandem has the highest hypervolume at every size.", everyone=True)]


def _times(swept: Swept) -> Table:
    rows = []
    for name in swept.algorithms:
        times = [swept.mean("wall_s", name, size).value for size in swept.values]
        ratio = gain(swept.seeds("wall_s", name, swept.values[-1]), swept.seeds("wall_s", name, swept.scale.size))
        rows.append((label(name), *(f"{time:.0f}" for time in times), f"{1 + ratio.value:.2f}"))
    last = f"{swept.values[-1]} devices against {swept.scale.size}"
    headings = ("", *(f"{size}" for size in swept.values), last)
    return Table("Seconds for one training, its share where seeds are trained together", headings, tuple(rows))


DEVICES = Experiment("devices", TITLE, cells, section)
