"""Figure of a front: one view in three dimensions, and one for each pair of objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from tandem.errors import InputError
from tandem.io.atomic import atomic_write
from tandem.learn.validation import within_tolerance
from tandem.objectives import AXIS_LABELS
from tandem.pareto import nondominated_indices
from tandem.runs.front import EXTREMES, KNEE, Front, Values, landmarks

ACCURACY, LATENCY, ENERGY = range(3)
# The good end of each objective is bright.
COLOURS = ("viridis", "viridis_r", "viridis_r")
MARKERS = dict(zip((*EXTREMES, KNEE), ("^", "s", "D", "*"), strict=True))
SIGNAL, DOMINATED, UNSAFE = "#d1495b", "#b8b8b8", "#333333"
FEW = 40  # points, up to which they are drawn large, and with a line down to the floor in three dimensions


def write_front_figure(path: Path, title: str, front: Front, tolerance: float) -> None:
    """Draw the front to a file, whose ending (.png, .pdf or .svg) gives the format."""
    figure = Figure(figsize=(12, 10.4), layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise InputError(f"{path}: is not a known format of figures; choose a name that ends in .png, .pdf or .svg.")
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 0.12])
    points = _Points.from_front(front, tolerance)
    _draw_3d(figure.add_subplot(grid[0, 0], projection="3d"), points)
    planes = ((LATENCY, ACCURACY, ENERGY), (ENERGY, ACCURACY, LATENCY), (ENERGY, LATENCY, ACCURACY))
    for cell, (across, up, colour) in zip((grid[0, 1], grid[1, 0], grid[1, 1]), planes, strict=True):
        _draw_plane(figure, figure.add_subplot(cell), points, across, up, colour)
    _draw_legend(figure.add_subplot(grid[2, :]), points)
    figure.suptitle(f"{title}\n{_measures(front)}", fontsize=12)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130)


class _Points(NamedTuple):
    """The points of a figure, in three groups, and those that are marked."""

    objectives: Values
    best: Any  # indices of non-dominated policies
    dominated: Any
    unsafe: Any  # policies in violation more often than is tolerated, dominated or not
    marked: dict[str, int]
    indices: list[int]
    size: float

    @classmethod
    def from_front(cls, front: Front, tolerance: float) -> _Points:
        safe = within_tolerance(front.violation_rate, tolerance)
        unsafe = np.flatnonzero(~safe)
        best = nondominated_indices(np.where(safe[:, None], front.points, np.nan))
        dominated = np.setdiff1d(np.arange(len(front.policies)), [*best, *unsafe])
        size = 46.0 if len(front.policies) <= FEW else 24.0
        indices = [policy.index for policy in front.policies]
        return cls(front.objectives, best, dominated, unsafe, landmarks(front, tolerance), indices, size)


def _draw_3d(axes: Any, points: _Points) -> None:
    x, y, z = (points.objectives[:, objective] for objective in (LATENCY, ENERGY, ACCURACY))
    floor = _limits(z)[0] if len(z) else 0.0
    if len(z) <= FEW:
        for n in range(len(z)):
            axes.plot([x[n], x[n]], [y[n], y[n]], [floor, z[n]], color="#999999", linewidth=0.6, alpha=0.7)
    for group, style in ((points.dominated, _dominated()), (points.unsafe, _unsafe())):
        axes.scatter(x[group], y[group], z[group], s=points.size * 0.7, depthshade=False, **style)
    axes.scatter(
        x[points.best],
        y[points.best],
        z[points.best],
        c=z[points.best],
        cmap=COLOURS[ACCURACY],
        s=points.size,
        edgecolors="white",
        linewidths=0.4,
        depthshade=False,
    )
    for name, n in points.marked.items():
        axes.scatter(x[n], y[n], z[n], s=_mark_size(name), marker=MARKERS[name], **_outline(), depthshade=False)
    axes.set(xlabel=_label(LATENCY), ylabel=_label(ENERGY), zlabel=_label(ACCURACY))
    if len(z):
        axes.set_zlim(*_limits(z))
    axes.tick_params(labelsize=8)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(5))
    axes.set_box_aspect((1, 1, 0.8), zoom=0.98)
    axes.view_init(elev=24, azim=-128)


def _draw_plane(figure: Figure, axes: Axes, points: _Points, across: int, up: int, colour: int) -> None:
    x, y, c = (points.objectives[:, objective] for objective in (across, up, colour))
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for group, style in ((points.dominated, _dominated()), (points.unsafe, _unsafe())):
        axes.scatter(x[group], y[group], s=points.size * 0.7, **style)
    scatter = axes.scatter(
        x[points.best],
        y[points.best],
        c=c[points.best],
        cmap=COLOURS[colour],
        s=points.size,
        edgecolors="white",
        linewidths=0.4,
    )
    for name, n in points.marked.items():
        axes.scatter(x[n], y[n], s=_mark_size(name), marker=MARKERS[name], zorder=4, **_outline())
    for n in sorted(set(points.marked.values())):
        axes.annotate(
            str(points.indices[n]),
            (x[n], y[n]),
            xytext=_inwards(x, y, n),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=10,
            fontweight="bold",
            color=SIGNAL,
            zorder=5,
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
    axes.set(xlabel=_label(across, arrow=True), ylabel=_label(up, arrow=True))
    axes.margins(0.09)
    if len(points.best):
        figure.colorbar(scatter, ax=axes, label=AXIS_LABELS[colour], pad=0.02, aspect=28)


def _draw_legend(axes: Axes, points: _Points) -> None:
    """Draw the legend: the meaning of the marks, and the policies that have them."""
    axes.set_axis_off()
    handles = []
    for name, n in points.marked.items():
        accuracy, latency_s, energy_j = points.objectives[n]
        text = f"{name}: policy {points.indices[n]} ({accuracy:.3g}, {latency_s:.3g} s, {energy_j:.3g} J)"
        handles.append(_handle(text, MARKERS[name], 13 if name == KNEE else 9, "none", SIGNAL))
    handles.append(_handle(f"not dominated ({len(points.best)})", "o", 7, "#21918c", "white"))
    if len(points.dominated):
        handles.append(_handle(f"dominated on these seeds ({len(points.dominated)})", "o", 7, DOMINATED, DOMINATED))
    if len(points.unsafe):
        handles.append(_handle(f"too often in violation, not counted ({len(points.unsafe)})", "x", 6, "none", UNSAFE))
    axes.legend(handles=handles, loc="center", ncols=3, frameon=False, fontsize=9.5, columnspacing=2.2)


def _handle(label: str, marker: str, size: float, face: str, edge: str) -> Line2D:
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=size,
        markerfacecolor=face,
        markeredgecolor=edge,
        markeredgewidth=1.6 if face == "none" else 0.4,
        label=label,
    )


def _measures(front: Front) -> str:
    accuracy, latency_s, energy_j = front.reference
    number = f"{len(front.policies)} polic{'y' if len(front.policies) == 1 else 'ies'}"
    return (
        f"{number}, hypervolume {front.hypervolume:.4g} from the reference point (accuracy {accuracy:g}, latency "
        f"{latency_s:g} s, energy {energy_j:g} J), sparsity {front.sparsity:.3g}"
    )


def _label(objective: int, arrow: bool = False) -> str:
    """Return the label of an axis with the direction in which it improves: an arrow, or words in three dimensions."""
    higher = objective == ACCURACY
    if not arrow:
        return f"{AXIS_LABELS[objective]}, {'higher' if higher else 'lower'} is better"
    # The label of a vertical axis is rotated, and its arrow with it.
    return f"{AXIS_LABELS[objective]}   better →" if higher else f"← better   {AXIS_LABELS[objective]}"


def _inwards(x: Values, y: Values, n: int) -> tuple[float, float]:
    """Return the offset of a point's number: towards the middle of the panel, where there is room."""
    middle_x, middle_y = (np.min(x) + np.max(x)) / 2, (np.min(y) + np.max(y)) / 2
    return (13.0 if x[n] <= middle_x else -13.0), (11.0 if y[n] <= middle_y else -11.0)


def _limits(values: Values) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    margin = 0.1 * (high - low) or 0.05 * (abs(high) or 1.0)
    return low - margin, high + margin / 2


def _mark_size(name: str) -> float:
    return 290.0 if name == KNEE else 130.0


def _dominated() -> dict[str, Any]:
    return {"color": DOMINATED, "linewidths": 0}


def _unsafe() -> dict[str, Any]:
    return {"color": UNSAFE, "linewidths": 1.2, "marker": "x"}


def _outline() -> dict[str, Any]:
    return {"facecolors": "none", "edgecolors": SIGNAL, "linewidths": 1.6}
