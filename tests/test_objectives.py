"""The three objectives: labels, and the only two places where signs change."""

import numpy as np

from tandem.objectives import AXIS_LABELS, OBJECTIVES, to_maximised, to_user_units


def test_labels_carry_units() -> None:
    assert AXIS_LABELS == ("accuracy", "latency (s)", "energy (J)")
    assert [objective.key for objective in OBJECTIVES] == ["accuracy", "latency_s", "energy_j"]


def test_signs_turn_latency_and_energy_and_turn_them_back() -> None:
    maximised = np.array([[0.75, -1.5, -20.0], [0.0, -0.25, -3.0]], np.float32)
    in_units = to_user_units(maximised)
    np.testing.assert_array_equal(in_units, [[0.75, 1.5, 20.0], [0.0, 0.25, 3.0]])
    np.testing.assert_array_equal(to_maximised(in_units), maximised)
    assert in_units.dtype == np.float64
    assert maximised[0, 1] == -1.5  # the input stays as it is
