"""Hypervolume and sparsity of C-MOPPO over beta, the share of the other objectives that it must keep."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from tandem.experiments.claims import (
    Algorithms,
    Experiment,
    ReportSection,
    Results,
    Table,
    check_claim,
    write_csv,
    write_figure,
)
from tandem.experiments.plotting import PROPOSED, line_style
from tandem.experiments.scale import Scale
from tandem.experiments.trial import Trial
from tandem.stats import difference, mean

TITLE = "Hypervolume and sparsity of C-MOPPO over beta"


def trials(scale: Scale, algorithms: Algorithms) -> list[Trial]:
    """C-MOPPO for every beta, whichever algorithms are compared elsewhere."""
    return [cell for beta in scale.betas for cell in _seeds(scale, beta)]


def make_section(scale: Scale, algorithms: Algorithms, results: Results, out: Path) -> ReportSection:
    """Write data and figure, and judge."""
    volumes = {beta: [results[cell].hypervolume for cell in _seeds(scale, beta)] for beta in scale.betas}
    sparsities = {beta: [results[cell].sparsity for cell in _seeds(scale, beta)] for beta in scale.betas}
    rows = [
        (beta, seed, volumes[beta][seed], sparsities[beta][seed]) for beta in scale.betas for seed in range(scale.seeds)
    ]
    write_csv(out / "beta.csv", ("beta", "seed", "hypervolume", "sparsity"), rows)
    low, high = scale.betas[0], scale.betas[-1]
    grows = difference(volumes[high], volumes[low])
    falls = difference(sparsities[low], sparsities[high])
    table = tuple((f"{beta:g}", str(mean(volumes[beta])), str(mean(sparsities[beta]))) for beta in scale.betas)
    return ReportSection(
        name="beta",
        title=TITLE,
        about="The paper's Fig. 7.",
        claims=(
            check_claim(
                "Hypervolume rises with beta, from 56.6 at 0.5 to 75.2 at 0.9.",
                f"From {mean(volumes[low])} at {low:g} to {mean(volumes[high])} at {high:g}: {grows}.",
                grows,
            ),
            check_claim(
                "Sparsity falls with beta, from 0.56 at 0.5 to 0.36 at 0.9.",
                f"From {mean(sparsities[low])} at {low:g} to {mean(sparsities[high])} at {high:g}: falls by {falls}.",
                falls,
            ),
        ),
        tables=(Table("C-MOPPO by beta", ("beta", "hypervolume", "sparsity"), table),),
        figures=(_draw(scale, volumes, sparsities, out),),
    )


def _seeds(scale: Scale, beta: float) -> list[Trial]:
    return [scale.trial(PROPOSED, seed, beta=beta) for seed in range(scale.seeds)]


def _draw(scale: Scale, volumes: dict[float, list[float]], sparsities: dict[float, list[float]], out: Path) -> str:
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, measure, values in zip(
        figure.subplots(1, 2), ("hypervolume", "sparsity"), (volumes, sparsities), strict=True
    ):
        points = [mean(values[beta]) for beta in scale.betas]
        spread = [[point.value - point.low for point in points], [point.high - point.value for point in points]]
        axes.errorbar(scale.betas, [point.value for point in points], yerr=spread, capsize=3, **line_style(PROPOSED))
        axes.set(xlabel="beta", ylabel=measure)
        axes.grid(color="#e6e6e6", linewidth=0.7)
    return write_figure(figure, out, "beta")


BETA = Experiment("beta", TITLE, trials, make_section)
