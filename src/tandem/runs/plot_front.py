"""A front at a glance: one view in space, and what each pair of objectives trades for the other."""

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
from tandem.objectives import AXIS_LABELS
from tandem.pareto import nondominated_indices as non_dominated
from tandem.runs.front import EXTREMES, KNEE, Front, Values, landmarks, selectable_points

ACCURACY, LATENCY, ENERGY = range(3)
# The good end of each objective is bright.
COLOURS = ("viridis", "viridis_r", "viridis_r")
MARKERS = dict(zip((*EXTREMES, KNEE), ("^", "s", "D", "*"), strict=True))
SIGNAL, BEATEN, UNSAFE = "#d1495b", "#b8b8b8", "#333333"
FEW = 40  # points up to here are drawn large, with a line down to the floor in the view in space


def write_front_figure(path: Path, title: str, front: Front, tolerance: float) -> None:
    """Draw the front; the ending of the path (.png, .pdf, .svg) says how."""
    figure = Figure(figsize=(12, 10.4), layout="constrained")
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise InputError(f"{path}: is not a picture that can be written; end it in .png, .pdf or .svg.")
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 0.12])
    drawn = _Drawn.of(front, tolerance)
    _draw_space(figure.add_subplot(grid[0, 0], projection="3d"), drawn)
    planes = ((LATENCY, ACCURACY, ENERGY), (ENERGY, ACCURACY, LATENCY), (ENERGY, LATENCY, ACCURACY))
    for place, (across, up, colour) in zip((grid[0, 1], grid[1, 0], grid[1, 1]), planes, strict=True):
        _draw_plane(figure, figure.add_subplot(place), drawn, across, up, colour)
    _write_key(figure.add_subplot(grid[2, :]), drawn)
    figure.suptitle(f"{title}\n{_measures(front)}", fontsize=12)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=130)


class _Drawn(NamedTuple):
    """The points, in three kinds, and those that get a mark of their own."""

    objectives: Values
    best: Any  # indices of those that nothing dominates
    beaten: Any
    unsafe: Any  # of those in violation more often than is tolerated, whatever dominates them
    marked: dict[str, int]
    indices: list[int]
    size: float

    @classmethod
    def of(cls, front: Front, tolerance: float) -> _Drawn:
        unsafe = np.flatnonzero(np.isnan(selectable_points(front, tolerance)).any(axis=1))
        best = np.setdiff1d(non_dominated(front.points), unsafe)
        beaten = np.setdiff1d(np.arange(len(front.policies)), [*best, *unsafe])
        size = 46.0 if len(front.policies) <= FEW else 24.0
        indices = [policy.index for policy in front.policies]
        return cls(front.objectives, best, beaten, unsafe, landmarks(front, tolerance), indices, size)


def _draw_space(axes: Any, drawn: _Drawn) -> None:
    x, y, z = (drawn.objectives[:, objective] for objective in (LATENCY, ENERGY, ACCURACY))
    floor = _room(z)[0] if len(z) else 0.0
    if len(z) <= FEW:
        for n in range(len(z)):
            axes.plot([x[n], x[n]], [y[n], y[n]], [floor, z[n]], color="#999999", linewidth=0.6, alpha=0.7)
    for kind, look in ((drawn.beaten, _beaten()), (drawn.unsafe, _unsafe())):
        axes.scatter(x[kind], y[kind], z[kind], s=drawn.size * 0.7, depthshade=False, **look)
    axes.scatter(
        x[drawn.best],
        y[drawn.best],
        z[drawn.best],
        c=z[drawn.best],
        cmap=COLOURS[ACCURACY],
        s=drawn.size,
        edgecolors="white",
        linewidths=0.4,
        depthshade=False,
    )
    for name, n in drawn.marked.items():
        axes.scatter(x[n], y[n], z[n], s=_mark(name), marker=MARKERS[name], **_outline(), depthshade=False)
    axes.set(xlabel=_label(LATENCY), ylabel=_label(ENERGY), zlabel=_label(ACCURACY))
    if len(z):
        axes.set_zlim(*_room(z))
    axes.tick_params(labelsize=8)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_major_locator(MaxNLocator(5))
    axes.set_box_aspect((1, 1, 0.8), zoom=0.98)
    axes.view_init(elev=24, azim=-128)


def _draw_plane(figure: Figure, axes: Axes, drawn: _Drawn, across: int, up: int, colour: int) -> None:
    x, y, c = (drawn.objectives[:, objective] for objective in (across, up, colour))
    axes.grid(color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    for kind, look in ((drawn.beaten, _beaten()), (drawn.unsafe, _unsafe())):
        axes.scatter(x[kind], y[kind], s=drawn.size * 0.7, **look)
    points = axes.scatter(
        x[drawn.best],
        y[drawn.best],
        c=c[drawn.best],
        cmap=COLOURS[colour],
        s=drawn.size,
        edgecolors="white",
        linewidths=0.4,
    )
    for name, n in drawn.marked.items():
        axes.scatter(x[n], y[n], s=_mark(name), marker=MARKERS[name], zorder=4, **_outline())
    for n in sorted(set(drawn.marked.values())):
        axes.annotate(
            str(drawn.indices[n]),
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
    axes.set(xlabel=_label(across, "right"), ylabel=_label(up, "up"))
    axes.margins(0.09)
    if len(drawn.best):
        figure.colorbar(points, ax=axes, label=AXIS_LABELS[colour], pad=0.02, aspect=28)


def _write_key(axes: Axes, drawn: _Drawn) -> None:
    """What the marks mean, and which policies have them."""
    axes.set_axis_off()
    handles = []
    for name, n in drawn.marked.items():
        accuracy, latency_s, energy_j = drawn.objectives[n]
        said = f"{name}: policy {drawn.indices[n]} ({accuracy:.3g}, {latency_s:.3g} s, {energy_j:.3g} J)"
        handles.append(_handle(said, MARKERS[name], 13 if name == KNEE else 9, "none", SIGNAL))
    handles.append(_handle(f"not dominated ({len(drawn.best)})", "o", 7, "#21918c", "white"))
    if len(drawn.beaten):
        handles.append(_handle(f"dominated on these seeds ({len(drawn.beaten)})", "o", 7, BEATEN, BEATEN))
    if len(drawn.unsafe):
        handles.append(_handle(f"too often in violation ({len(drawn.unsafe)})", "x", 6, "none", UNSAFE))
    axes.legend(handles=handles, loc="center", ncols=3, frameon=False, fontsize=9.5, columnspacing=2.2)


def _handle(said: str, marker: str, size: float, face: str, edge: str) -> Line2D:
    return Line2D(
        [],
        [],
        linestyle="none",
        marker=marker,
        markersize=size,
        markerfacecolor=face,
        markeredgecolor=edge,
        markeredgewidth=1.6 if face == "none" else 0.4,
        label=said,
    )


def _measures(front: Front) -> str:
    accuracy, latency_s, energy_j = front.reference
    number = f"{len(front.policies)} polic{'y' if len(front.policies) == 1 else 'ies'}"
    return (
        f"{number}, hypervolume {front.hypervolume:.4g} from the reference point (accuracy {accuracy:g}, latency "
        f"{latency_s:g} s, energy {energy_j:g} J), sparsity {front.sparsity:.3g}"
    )


def _label(objective: int, direction: str = "") -> str:
    """The objective with the direction in which it gets better; in space, where axes lean, in words."""
    up = objective == ACCURACY
    if not direction:
        return f"{AXIS_LABELS[objective]}, {'higher' if up else 'lower'} is better"
    forth, back = ("→", "←")  # a label up the side is turned, and its arrows with it
    return f"{AXIS_LABELS[objective]}   better {forth}" if up else f"{back} better   {AXIS_LABELS[objective]}"


def _inwards(x: Values, y: Values, n: int) -> tuple[float, float]:
    """Where to put a point's number: towards the middle of the panel, where there is room."""
    middle_x, middle_y = (np.min(x) + np.max(x)) / 2, (np.min(y) + np.max(y)) / 2
    return (13.0 if x[n] <= middle_x else -13.0), (11.0 if y[n] <= middle_y else -11.0)


def _room(values: Values) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.1 * (high - low) or 0.05 * (abs(high) or 1.0)
    return low - room, high + room / 2


def _mark(name: str) -> float:
    return 290.0 if name == KNEE else 130.0


def _beaten() -> dict[str, Any]:
    return {"color": BEATEN, "linewidths": 0}


def _unsafe() -> dict[str, Any]:
    return {"color": UNSAFE, "linewidths": 1.2, "marker": "x"}


def _outline() -> dict[str, Any]:
    return {"facecolors": "none", "edgecolors": SIGNAL, "linewidths": 1.6}
