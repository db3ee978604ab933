"""The timetable of the shield: rounds in which a device is sure to have a place among the trainers.

Device n must train at least once in every P_n rounds, or its buffer may overflow; a round has m places for trainers.
This is windows scheduling (pinwheel scheduling if m = 1). A schedule is easy to construct if the windows of all devices
that share a place are x 2^k for one base x. So each window is shortened to such a number, and devices are packed into
places like blocks of memory in a buddy allocator, without gaps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Whole = NDArray[np.int64]

MAX_WINDOW = 2**20  # rounds; a device that may wait longer loses nothing by a place every million rounds
MIXED_BASES_UP_TO = 2000  # devices; larger fleets use one base for all places, which takes no search


class Timetable(NamedTuple):
    """Device n has a place in every round t with t mod period[n] = offset[n]."""

    period: Whole
    offset: Whole
    places: int  # in each round


def build_timetable(windows: Whole) -> Timetable:
    """Return a timetable with few places, in which device n has one at least every ``windows[n]`` (>= 1) rounds."""
    windows = np.minimum(np.asarray(windows, np.int64), MAX_WINDOW)
    best = min((_one_base(windows, base) for base in range(1, _max_base(windows) + 1)), key=lambda table: table.places)
    if len(windows) > MIXED_BASES_UP_TO or best.places <= np.ceil(np.sum(1 / windows) - 1e-9):
        return best
    mixed = _mixed_bases(windows)
    return mixed if mixed.places < best.places else best


def _max_base(windows: Whole) -> int:
    return int(min(windows.min(initial=1), 64))


def _harmonic(windows: Whole, base: int) -> Whole:
    """Shorten windows, all at least ``base``, to base 2^k."""
    ratio = windows // base
    return np.asarray(base * 2 ** (np.frexp(ratio.astype(np.float64))[1] - 1), np.int64)


def _one_base(windows: Whole, base: int) -> Timetable:
    """Fill the places one after another, the most frequent devices first.

    A place is [0, 1) and a device takes 1 / period of it. With ascending periods, a device starts at a multiple of its
    share: the whole number of shares before it, read as digits of (base, 2, 2, ...), reversed, is its offset.
    """
    period = _harmonic(windows, base)
    order = np.argsort(period, kind="stable")
    longest = int(period.max(initial=base))
    start = np.concatenate([[0], np.cumsum(longest // period[order])])
    places = int(-(-start[-1] // longest)) if len(windows) else 0
    offset = np.zeros_like(period)
    offset[order] = _reversed_digits((start[:-1] % longest) // (longest // period[order]), period[order], base)
    return Timetable(period, offset, places)


def _reversed_digits(position: Whole, period: Whole, base: int) -> Whole:
    """Return which residue modulo ``period`` = base 2^k is the ``position``-th, if residues are split in halves."""
    halvings = np.log2(period // base).round().astype(np.int64)
    rest, offset, weight = position.copy(), np.zeros_like(position), np.full_like(position, base)
    # The leading digit (in 0..base-1) selects the residue modulo the base, each further bit one of two halves.
    offset += rest >> halvings
    for step in range(int(halvings.max(initial=0))):
        active = step < halvings
        bit = np.where(active, (rest >> np.maximum(halvings - 1 - step, 0)) & 1, 0)
        offset += bit * weight
        weight = np.where(active, 2 * weight, weight)
    return offset


def _mixed_bases(windows: Whole) -> Timetable:
    """Give each place its own base: the one that packs most demand beside the device with the shortest window."""
    period, offset = np.zeros_like(windows), np.zeros_like(windows)
    left = np.argsort(windows, kind="stable")
    places = 0
    while len(left):
        first = int(windows[left[0]])
        options = [_fill_place(windows, left, base) for base in range(max(1, (first + 1) // 2), first + 1)]
        taken, table = max(options, key=lambda option: float(np.sum(1 / windows[option[0]])))
        period[taken], offset[taken] = table.period, table.offset
        left = left[~np.isin(left, taken)]
        places += 1
    return Timetable(period, offset, places)


def _fill_place(windows: Whole, left: Whole, base: int) -> tuple[Whole, Timetable]:
    """Choose devices for one place: the first, then those whose windows are shortened least."""
    able = left[windows[left] >= base]
    period = _harmonic(windows[able], base)
    order = np.argsort(-period / windows[able], kind="stable")
    order = np.concatenate([[0], order[order != 0]])  # the first device has the shortest window
    longest = int(period.max())
    room, chosen = longest, []
    for index in order:
        share = longest // int(period[index])
        if share <= room:
            chosen.append(index)
            room -= share
    taken = able[np.sort(np.asarray(chosen))]
    return taken, _one_base(windows[taken], base)
