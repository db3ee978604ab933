"""The archive against a list kept by brute force, through many batches, compiled and in parallel."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brute_force import ROWS, broken, crowding, masks, non_dominated, padded, point_sets, sphere, spread, tied, tried_on
from hypothesis import strategies as st

from tandem.errors import InputError
from tandem.pareto import Archive, insert, store

IDS = np.arange(ROWS, dtype=np.int32)
ALL = np.ones(ROWS, bool)


def put(archive: Archive, points: np.ndarray, first_id: int = 0) -> tuple[Archive, list[int]]:
    """Insert a few points, padded to the shape that is compiled already. Returns the slots of those points."""
    rows, valid = padded(points)
    archive, slots = insert(archive, rows, IDS + first_id, valid)
    return archive, slots.tolist()[: len(points)]


def held(archive: Archive) -> list[tuple[float, ...]]:
    return sorted(map(tuple, np.asarray(archive.points)[np.asarray(archive.valid)].tolist()))


def slow_insert(points: list[tuple[float, ...]], new: np.ndarray, capacity: int) -> list[tuple[float, ...]]:
    """What an archive of these points holds after the new ones, by the rules in plain Python."""
    everyone = np.array([*points, *map(tuple, new.tolist())], np.float64).reshape(-1, 3)
    kept = [tuple(point) for point in everyone[non_dominated(everyone)].tolist()]
    while len(kept) > capacity:
        array = np.array(kept)
        literal, finite = crowding(array), crowding(array, finite=True)
        varied = [i for i in range(3) if np.ptp(array[:, i]) > 0]
        best = {max(kept, key=lambda point: tuple(point[(i + k) % 3] for k in range(3))) for i in varied}
        # Single precision cannot tell distances apart that differ by less.
        least = min(
            range(len(kept)), key=lambda k: (kept[k] in best, math.isinf(literal[k]), round(finite[k], 5), kept[k])
        )
        del kept[least]
    return sorted(kept)


def check(archive: Archive) -> None:
    points, valid, ids = (np.asarray(leaf) for leaf in (archive.points, archive.valid, archive.ids))
    assert non_dominated(points, valid) == valid.tolist()
    assert np.isfinite(points[valid]).all()
    assert (points[~valid] == -np.inf).all()
    assert (ids[~valid] == -1).all()
    assert archive.size == valid.sum() <= archive.capacity


def test_insertion_by_hand() -> None:
    archive, slots = put(Archive.init(4), np.float32([[1, 1, 1], [2, 0, 0], [0, 0, 0]]), 10)
    assert slots == [0, 1, -1]  # the last is dominated
    # (2, 2, 2) dominates both and takes the first free slot; the other slots are empty again.
    archive, slots = put(archive, np.float32([[1, 1, 1], [2, 2, 2]]), 20)
    assert slots == [-1, 0]
    assert archive.ids.tolist() == [21, -1, -1, -1]
    assert archive.valid.tolist() == [True, False, False, False]
    # A point that is there already is not stored twice, nor are equal points of one batch.
    archive, slots = put(archive, np.float32([[2, 2, 2], [3, 0, 0], [3, 0, 0]]), 30)
    assert slots == [-1, 1, -1]
    assert archive.ids.tolist() == [21, 31, -1, -1]


def test_pruning_by_hand() -> None:
    # On a line, with the third objective constant: of 0, 1, 2, 4, 10 the point 1 has gaps of 2 + 2, the point 2 of
    # 3 + 3, the point 4 of 8 + 8 tenths: 1 leaves first. Without 1, the point 2 has 4 + 4; with 20 it leaves next.
    line = np.float32([[x, 20 - x, 7] for x in (4, 0, 10, 2, 1)])
    archive, slots = put(Archive.init(4), line)
    assert slots == [0, 1, 2, 3, -1]
    _, slots = put(archive, np.float32([[20, 0, 7]]))
    assert slots == [3]
    # One slot holds the end with more room: 10, which is 6 from the next.
    assert held(put(Archive.init(1), line)[0]) == [(10, 10, 7)]


@tried_on(st.lists(point_sets(tied | broken), min_size=1, max_size=4), masks())
def test_with_room_for_all_it_is_the_front(batches: list[np.ndarray], valid: np.ndarray) -> None:
    archive = Archive.init(4 * ROWS)
    for batch in batches:
        archive, _ = insert(archive, batch, IDS, valid)
        check(archive)
    everything = np.concatenate([batch[valid] for batch in batches])
    assert held(archive) == sorted(map(tuple, everything[non_dominated(everything)].tolist()))


@pytest.mark.parametrize("capacity", [1, 4, pytest.param(7, marks=pytest.mark.slow)])
@tried_on(batches=st.lists(point_sets(tied), min_size=1, max_size=3))
def test_a_full_one_follows_the_rules(capacity: int, batches: list[np.ndarray]) -> None:
    archive, expected = Archive.init(capacity), []
    for batch in batches:
        archive, _ = insert(archive, batch, IDS, ALL)
        expected = slow_insert(expected, batch, capacity)
        check(archive)
        assert held(archive) == expected


@tried_on(point_sets(tied | spread), st.randoms(use_true_random=False))
def test_order_within_a_batch_does_not_matter(batch: np.ndarray, random: object) -> None:
    shuffle = list(range(ROWS))
    random.shuffle(shuffle)  # type: ignore[attr-defined]
    one, _ = insert(Archive.init(4), batch, IDS, ALL)
    other, _ = insert(Archive.init(4), batch[shuffle], IDS, ALL)
    assert held(one) == held(other)


@pytest.mark.parametrize("capacity", [4, 12, *(pytest.param(size, marks=pytest.mark.slow) for size in (3, 6, 20))])
def test_the_best_of_each_objective_stay(capacity: int) -> None:
    archive, seen = Archive.init(capacity), []
    for seed in range(8):
        seen.append(sphere(ROWS, seed))
        archive, _ = insert(archive, seen[-1], IDS, ALL)
        assert archive.size == min(capacity, ROWS * (seed + 1))
        np.testing.assert_array_equal(jnp.max(archive.points, axis=0), np.concatenate(seen).max(axis=0))


def test_slots_lead_to_payloads() -> None:
    # Every point carries a payload, stored by slot; after any number of batches each slot's payload is its point's.
    random = np.random.default_rng(7)
    archive = Archive.init(12)
    payload = {"weights": jnp.zeros((12, 2, 3)), "name": "kept as it is", "id": jnp.zeros(12, jnp.int32)}
    for step in range(60):
        batch = random.normal(size=(ROWS, 3)).astype(np.float32) + np.float32(0.02 * step)
        batch[random.random(ROWS) < 0.1] = np.nan
        ids = IDS + ROWS * step
        before = archive
        archive, slots = insert(archive, batch, ids, ALL)
        rows = {"weights": np.stack([batch, -batch], axis=1), "name": "another", "id": ids}
        payload = store(payload, slots, rows)
        check(archive)
        taken = np.asarray(slots)[np.asarray(slots) >= 0]
        assert len(set(taken.tolist())) == len(taken)
        valid = np.asarray(archive.valid)
        np.testing.assert_array_equal(archive.ids[valid], payload["id"][valid])
        np.testing.assert_array_equal(archive.points[valid], payload["weights"][valid][:, 0])
        np.testing.assert_array_equal(archive.points[valid], -payload["weights"][valid][:, 1])
        untouched = valid & ~np.isin(np.arange(12), taken)
        np.testing.assert_array_equal(archive.points[untouched], before.points[untouched])
    assert payload["name"] == "kept as it is"


def test_archives_side_by_side_compile_once() -> None:
    assert not Archive.init(4).points.weak_type  # or the first batch would be compiled apart from all others
    traces = 0

    @eqx.filter_jit
    def step(archives: Archive, batches: jax.Array, ids: jax.Array) -> tuple[Archive, jax.Array]:
        nonlocal traces
        traces += 1
        return jax.vmap(insert, in_axes=(0, 0, 0, None))(archives, batches, ids, ALL)

    random = np.random.default_rng(8)
    singles = [Archive.init(4) for _ in range(3)]
    archives = jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)
    for _ in range(20):
        batches = random.normal(size=(3, ROWS, 3)).astype(np.float32)
        ids = random.integers(0, 1000, (3, ROWS)).astype(np.int32)
        archives, slots = step(archives, batches, ids)
        for k in range(3):
            singles[k], slot = insert(singles[k], batches[k], ids[k], ALL)
            assert slots[k].tolist() == slot.tolist()
            assert eqx.tree_equal(jax.tree.map(lambda leaf, k=k: leaf[k], archives), singles[k])
    assert traces == 1
    assert archives.size.tolist() == [single.size for single in singles]


def test_inside_a_scan() -> None:
    batches = np.stack([sphere(ROWS, seed) for seed in range(6)])
    ids = np.arange(6 * ROWS, dtype=np.int32).reshape(6, ROWS)
    scanned, _ = jax.lax.scan(lambda archive, new: insert(archive, *new, ALL), Archive.init(4), (batches, ids))
    looped = Archive.init(4)
    for batch, names in zip(batches, ids, strict=True):
        looped, _ = insert(looped, batch, names, ALL)
    assert eqx.tree_equal(scanned, looped)


def test_nothing_to_store() -> None:
    for batch in (np.full((ROWS, 3), math.nan), np.full((ROWS, 3), math.inf), np.full((ROWS, 3), -math.inf)):
        archive, slots = insert(Archive.init(4), batch.astype(np.float32), IDS, ALL)
        assert (slots == -1).all()
        assert eqx.tree_equal(archive, Archive.init(4))
    archive, slots = insert(Archive.init(4), sphere(ROWS), IDS, np.zeros(ROWS, bool))
    assert (slots == -1).all()
    assert archive.size == 0
    archive, slots = insert(Archive.init(4), np.ones((ROWS, 3), np.float32), IDS, ALL)
    assert slots.tolist() == [0] + [-1] * (ROWS - 1)
    huge = np.float32([[-3e38, 3e38, 0], [0, 0, 0], [3e38, -3e38, 0]])
    assert put(Archive.init(1), huge)[0].size == 1
    with pytest.raises(InputError, match="capacity"):
        Archive.init(0)


def test_store_leaves_rejected_rows_out() -> None:
    # -1 must not mean the last slot.
    stored = store(np.zeros(4), jnp.array([-1, 2, -1]), np.array([7.0, 8.0, 9.0]))
    assert stored.tolist() == [0, 0, 8, 0]


def test_survives_a_checkpoint(tmp_path: object) -> None:
    archive, _ = insert(Archive.init(4), sphere(ROWS), IDS, ALL)
    path = f"{tmp_path}/archive.eqx"
    eqx.tree_serialise_leaves(path, archive)
    assert eqx.tree_equal(eqx.tree_deserialise_leaves(path, Archive.init(4)), archive)
