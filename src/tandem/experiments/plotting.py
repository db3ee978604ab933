"""Names, colours and drawing functions that the figures share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tandem.experiments.trial import Values
from tandem.io.atomic import atomic_write
from tandem.stats import Estimate, mean

OURS = "pc-ppo"
PROPOSED, GUIDED, EVOLVED, SCALARISED, RANDOM = "c-moppo", "pg-morl", "moea-d", "s-ppo", "r-ppo"
PAPERS = (PROPOSED, GUIDED, EVOLVED, SCALARISED, RANDOM)
COMPARED = (OURS, *PAPERS, "nsga2")

LABELS = {
    OURS: "PC-PPO",
    PROPOSED: "C-MOPPO",
    GUIDED: "PG-MORL",
    EVOLVED: "MOEA/D",
    SCALARISED: "S-PPO",
    RANDOM: "R+PPO",
    "nsga2": "NSGA-II",
}
_COLOURS = ("#d1495b", "#1f6fb2", "#2a9d64", "#d98c21", "#7d5ba6", "#777777", "#17a2b8")
_MARKERS = "osD^vXP"
FAR_BELOW = 0.7  # a line whose mean is below this share of the highest point would compress the others


def label(algorithm: str) -> str:
    """Return an algorithm's name as in the paper."""
    return LABELS.get(algorithm, algorithm)


def line_style(algorithm: str) -> dict[str, Any]:
    """Return an algorithm's colour and marker, the same in every figure."""
    known = list(LABELS)
    index = known.index(algorithm) if algorithm in known else sum(map(ord, algorithm))
    return {"color": _COLOURS[index % len(_COLOURS)], "marker": _MARKERS[index % len(_MARKERS)]}


def add_grid(axes: Axes) -> None:
    """Draw a light grid."""
    axes.grid(color="#e6e6e6", linewidth=0.7)


def error_bars(line: Sequence[Estimate]) -> list[list[float]]:
    """Return the distances of a line's intervals below and above it."""
    return [[point.value - point.low for point in line], [point.high - point.value for point in line]]


def zoom_to_leaders(axes: Axes, lines: Mapping[str, Sequence[float]]) -> None:
    """Limit the axis to the lines near the top, and annotate the lines below it."""
    best = max(max(line) for line in lines.values())
    far = {name: line for name, line in lines.items() if fmean(line) < FAR_BELOW * best}
    if not far or len(far) == len(lines):
        return
    near = [value for name, line in lines.items() if name not in far for value in line]
    margin = 0.07 * (max(near) - min(near))
    axes.set_ylim(min(near) - margin, max(near) + margin)
    below = "; ".join(f"{label(name)}, {min(line):.0f} to {max(line):.0f}" for name, line in far.items())
    axes.annotate(f"below the figure: {below}", (0.02, 0.02), xycoords="axes fraction", fontsize=9, color="#555555")


def draw_curves(axes: Axes, curves: Sequence[Values], name: str, style: Mapping[str, Any]) -> list[float]:
    """Draw hypervolume over rounds, the mean over seeds with its interval; return the mean."""
    points = min(len(curve) for curve in curves)
    rounds = np.mean([curve[:points, 0] for curve in curves], axis=0)
    line = [mean([curve[point, 1] for curve in curves]) for point in range(points)]
    centre = [point.value for point in line]
    axes.plot(rounds, centre, label=name, markersize=4, **style)
    interval = [point.low for point in line], [point.high for point in line]
    axes.fill_between(rounds, *interval, color=style["color"], alpha=0.15, linewidth=0)
    return centre


def write_figure(figure: Figure, out: Path, name: str) -> str:
    """Write a figure as PNG and as SVG; return its name."""
    for ending in ("png", "svg"):
        # Without a date and with fixed identifiers, the same data give the same file.
        fixed = matplotlib.rc_context({"svg.hashsalt": "tandem"})
        with atomic_write(out / f"{name}.{ending}") as temporary, fixed:
            figure.savefig(temporary, dpi=130, metadata={"Date": None} if ending == "svg" else None)
    return name
