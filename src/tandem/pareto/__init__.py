"""Geometry of Pareto fronts: dominance, archive, crowding, hypervolume and other metrics, and choosing a policy.

Everything is maximised: points are rows of accuracy, -latency (s), -energy (J). Functions with a mask run inside
compiled code; the others run on the host, in NumPy.
"""

from tandem.pareto.archive import Archive, assign_slots, insert, store
from tandem.pareto.crowding import crowding_distance, crowding_per_front, select_for_extension
from tandem.pareto.decision import Choice, best_for_preference, knee_point, pick, spread_subset
from tandem.pareto.dominance import dominates, is_nondominated, nondominated_indices, pareto_rank
from tandem.pareto.hypervolume import hypervolume, hypervolume_improvement
from tandem.pareto.metrics import cardinality, expected_utility, sparsity, sparsity_if_added
from tandem.pareto.points import Ranges, normalise
from tandem.pareto.preferences import interior_simplex, simplex_grid
from tandem.pareto.scaling import ObjectiveScaler

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
