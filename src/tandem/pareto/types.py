"""Shapes in compiled code: a set of points in objective space, and the mask of its rows that count."""

from __future__ import annotations

from jaxtyping import Array, Bool, Float, Int

# In compiled code a set has a fixed number of rows and a mask of those that are in it.
Points = Float[Array, "points objectives"]  # everything maximised
Points3 = Float[Array, "points 3"]  # accuracy, -latency (s), -energy (J)
Point3 = Float[Array, "3"]
PerPoint = Float[Array, " points"]
Mask = Bool[Array, " points"]
Counts = Int[Array, " points"]
Candidates = Float[Array, "candidates 3"]  # points that may be added to a set
PerCandidate = Float[Array, " candidates"]

__all__ = [
    "Array",
    "Candidates",
    "Counts",
    "Mask",
    "PerCandidate",
    "PerPoint",
    "Point3",
    "Points",
    "Points3",
]
