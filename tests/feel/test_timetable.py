"""The timetable gives every device a place in time, and no round more places than it has."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.feel.timetable import MAX_WINDOW, build_timetable


def places_used(period: np.ndarray, offset: np.ndarray, rounds: int) -> np.ndarray:
    return np.sum(np.arange(rounds)[:, None] % period == offset, axis=1)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=40))
def test_every_device_has_a_place_in_its_window(windows: list[int]) -> None:
    table = build_timetable(np.array(windows))
    assert np.all(table.period <= windows)
    assert np.all((table.offset >= 0) & (table.offset < table.period))
    cycle = int(np.lcm.reduce(table.period))
    assert places_used(table.period, table.offset, min(cycle, 5000)).max() <= table.places
    # Not more than twice the demand, rounded up for each of the two ways of rounding.
    assert table.places <= np.ceil(2 * np.sum(1 / np.array(windows)))


def test_equal_windows_waste_nothing() -> None:
    for window in (2, 3, 7, 12):
        assert build_timetable(np.full(3 * window, window)).places == 3


def test_different_bases_share_no_place() -> None:
    """Windows of 3 and of 5 have no common base, but each kind fills places of its own."""
    table = build_timetable(np.array([3, 3, 3, 5, 5, 5, 5, 5]))
    assert table.places == 2
    assert set(table.period) == {3, 5}


def test_powers_of_two_by_hand() -> None:
    table = build_timetable(np.array([4, 2, 4]))
    assert table.places == 1
    assert table.period.tolist() == [4, 2, 4]
    assert table.offset[1] == 0
    assert sorted(table.offset[[0, 2]]) == [1, 3]


@pytest.mark.parametrize("size", [1, 3000, 50_000])
def test_large_fleets_and_long_windows(size: int) -> None:
    windows = np.random.default_rng(size).integers(2, 2**50, size)
    table = build_timetable(windows)
    assert table.period.max() <= MAX_WINDOW
    assert np.all(table.period <= windows)
