"""How algorithms are named and drawn in the paper's figures, and which of them are the paper's."""

from __future__ import annotations

from typing import Any

OURS = "tandem"
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


def look(algorithm: str) -> dict[str, Any]:
    """Colour and marker, the same in every figure."""
    known = list(LABELS)
    place = known.index(algorithm) if algorithm in known else sum(map(ord, algorithm))
    return {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)]}
