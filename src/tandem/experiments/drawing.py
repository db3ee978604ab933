"""What the figures of several experiments have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from matplotlib.axes import Axes

from tandem.experiments.algorithms import label

FAR_BELOW = 0.7  # of the highest point: a line lower than that on average would squeeze the others into one


def look_closely(axes: Axes, lines: Mapping[str, Sequence[float]]) -> None:
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
