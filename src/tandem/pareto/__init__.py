"""Geometry of Pareto fronts: dominance, archive, crowding, hypervolume and other metrics, and choosing a policy.

Everything is maximised: points are rows of accuracy, -latency (s), -energy (J). Functions with a mask run inside
compiled code; the others run on the host, in NumPy.
"""

from typing import TYPE_CHECKING

from tandem.lazy import lazy_attributes

if TYPE_CHECKING:
    from tandem.pareto.archive import Archive, assign_slots, insert, store
    from tandem.pareto.crowding import crowding_distance, crowding_per_front, select_for_extension
    from tandem.pareto.decision import Choice, best_for_preference, knee_point, pick, spread_subset
    from tandem.pareto.dominance import dominates, is_nondominated, pareto_rank
    from tandem.pareto.metrics import cardinality, expected_utility, sparsity, sparsity_if_added
    from tandem.pareto.points import Ranges, nondominated_indices, normalise
    from tandem.pareto.preferences import interior_simplex, simplex_grid
    from tandem.pareto.scaling import ObjectiveScaler
    from tandem.pareto.volume import hypervolume, hypervolume_improvement

__all__ = [
    "Archive",
    "Choice",
    "ObjectiveScaler",
    "Ranges",
    "assign_slots",
    "best_for_preference",
    "cardinality",
    "crowding_distance",
    "crowding_per_front",
    "dominates",
    "expected_utility",
    "hypervolume",
    "hypervolume_improvement",
    "insert",
    "interior_simplex",
    "is_nondominated",
    "knee_point",
    "nondominated_indices",
    "normalise",
    "pareto_rank",
    "pick",
    "select_for_extension",
    "simplex_grid",
    "sparsity",
    "sparsity_if_added",
    "spread_subset",
    "store",
]

# Imported when first used: the functions on the host do not need JAX, which takes a second to import.
_LAZY = {
    "Archive": "tandem.pareto.archive",
    "Choice": "tandem.pareto.decision",
    "ObjectiveScaler": "tandem.pareto.scaling",
    "Ranges": "tandem.pareto.points",
    "assign_slots": "tandem.pareto.archive",
    "best_for_preference": "tandem.pareto.decision",
    "cardinality": "tandem.pareto.metrics",
    "crowding_distance": "tandem.pareto.crowding",
    "crowding_per_front": "tandem.pareto.crowding",
    "dominates": "tandem.pareto.dominance",
    "expected_utility": "tandem.pareto.metrics",
    "hypervolume": "tandem.pareto.volume",
    "hypervolume_improvement": "tandem.pareto.volume",
    "insert": "tandem.pareto.archive",
    "interior_simplex": "tandem.pareto.preferences",
    "is_nondominated": "tandem.pareto.dominance",
    "knee_point": "tandem.pareto.decision",
    "nondominated_indices": "tandem.pareto.points",
    "normalise": "tandem.pareto.points",
    "pareto_rank": "tandem.pareto.dominance",
    "pick": "tandem.pareto.decision",
    "select_for_extension": "tandem.pareto.crowding",
    "simplex_grid": "tandem.pareto.preferences",
    "sparsity": "tandem.pareto.metrics",
    "sparsity_if_added": "tandem.pareto.metrics",
    "spread_subset": "tandem.pareto.decision",
    "store": "tandem.pareto.archive",
}


__getattr__ = lazy_attributes(__name__, _LAZY)
