"""What the figures of several experiments have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from tandem.experiments.trial import Values
from tandem.stats import mean

FAR_BELOW = 0.7  # of the highest point: a line lower than that on average would squeeze the others into one


def zoom_to_leaders(axes: Axes, lines: Mapping[str, Sequence[float]]) -> None:
    """Give the room to the lines near the top, and say which lie below the figure, and where."""
    best = max(max(line) for line in lines.values())
    far = {name: line for name, line in lines.items() if fmean(line) < FAR_BELOW * best}
    if not far:
        return
    near = [value for name, line in lines.items() if name not in far for value in line]
    margin = 0.07 * (max(near) - min(near))
    axes.set_ylim(min(near) - margin, max(near) + margin)
    below = "; ".join(f"{label(name)}, {min(line):.0f} to {max(line):.0f}" for name, line in far.items())
    axes.annotate(f"below the figure: {below}", (0.02, 0.02), xycoords="axes fraction", fontsize=9, color="#555555")


def draw_curves(axes: Axes, curves: Sequence[Values], name: str, style: Mapping[str, Any]) -> list[float]:
    """Hypervolume over rounds: the mean over seeds, which is returned, with its interval."""
    marks = min(len(curve) for curve in curves)
    rounds = np.mean([curve[:marks, 0] for curve in curves], axis=0)
    line = [mean([curve[mark, 1] for curve in curves]) for mark in range(marks)]
    centre = [point.value for point in line]
    axes.plot(rounds, centre, label=name, markersize=4, **style)
    spread = [p.low for p in line], [p.high for p in line]
    axes.fill_between(rounds, *spread, color=style["color"], alpha=0.15, linewidth=0)
    return centre


OURS = "pc-ppo"
PROPOSED, GUIDED, EVOLVED, SCALARISED, RANDOM = "c-moppo", "pg-morl", "moea-d", "s-ppo", "r-ppo"
PAPERS = (PROPOSED, GUIDED, EVOLVED, SCALARISED, RANDOM)
COMPARED = (OURS, *PAPERS, "nsga2")

LABELS = {
    OURS: "Tandem",
    PROPOSED: "C-MOPPO",
    GUIDED: "PG-MORL",
    EVOLVED: "MOEA/D",
    SCALARISED: "S-PPO",
    RANDOM: "R+PPO",
    "nsga2": "NSGA-II",
}
_COLOURS = ("#d1495b", "#1f6fb2", "#2a9d64", "#d98c21", "#7d5ba6", "#777777", "#17a2b8")
_MARKERS = "osD^vXP"


def label(algorithm: str) -> str:
    """As the paper writes it."""
    return LABELS.get(algorithm, algorithm)


def line_style(algorithm: str) -> dict[str, Any]:
    """Colour and marker, the same in every figure."""
    known = list(LABELS)
    place = known.index(algorithm) if algorithm in known else sum(map(ord, algorithm))
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}
