"""Sums over many padded lists, compared with lists one by one in NumPy."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.federated import ragged
from tandem.federated.data import Samples
from tandem.federated.fedavg import summed_loss
from tandem.federated.ragged import BLOCK_SIZE, computed_bytes, sum_over_ragged
from tandem.federated.tasks.models import ConvolutionalNetwork

SLOTS = 3 * BLOCK_SIZE
LISTS = 7


def work(model: Any, entries: Any, valid: Any) -> Any:
    """Sums of several shapes and types."""
    kept = jnp.where(valid, entries, 0)
    return {"scaled": model * jnp.sum(kept), "pair": jnp.stack([model, model]) * jnp.max(kept), "many": jnp.sum(valid)}


def summed(models: Any, lists: Any, counts: Any) -> Any:
    return jax.vmap(lambda *own: sum_over_ragged(work, *own))(models, lists, counts)


def by_hand(model: float, entries: np.ndarray, count: int) -> tuple[float, float, int]:
    begins = range(0, count, BLOCK_SIZE)
    tops = sum(max(0.0, float(entries[b : min(b + BLOCK_SIZE, count)].max())) for b in begins)
    return float(model * entries[:count].sum(dtype=np.float64)), model * tops, count


# Compiled once each, with memory for one block, for three, and for one block of every list.
ROWS = {width: jax.jit(lambda *lists: summed(*lists)) for width in (1, 3, LISTS)}
DEEP = jax.jit(jax.vmap(jax.vmap(summed, in_axes=(0, 0, 0)), in_axes=(0, None, 0)))


def some_lists(seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=LISTS).astype(np.float32), draw.integers(1, 100, (LISTS, SLOTS)).astype(np.float32)


@contextmanager
def room_for(width: int) -> Iterator[None]:
    models, lists = some_lists(0)
    one = computed_bytes(work, models[0], lists[0][:BLOCK_SIZE], jnp.ones(BLOCK_SIZE, bool))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ragged, "WORKING_BYTES", width * one // ragged.MEMORY_REUSE + 1)
        yield


def in_rows_of(width: int, *lists: Any) -> Any:
    with room_for(width):
        return ROWS[width](*lists)


def test_the_program_depends_on_the_available_memory() -> None:
    """A program traced for one width must not be used for another."""
    programs = set()
    for width in ROWS:
        with room_for(width):
            programs.add(str(jax.make_jaxpr(lambda *lists: summed(*lists))(*some_lists(0), np.zeros(LISTS, np.int32))))
    assert len(programs) == len(ROWS)


@settings(deadline=None, max_examples=40)
@given(
    counts=st.lists(st.integers(0, SLOTS), min_size=LISTS, max_size=LISTS),
    seed=st.integers(0, 99),
    width=st.sampled_from(list(ROWS)),
)
def test_every_list_gets_its_own_sum(counts: list[int], seed: int, width: int) -> None:
    models, lists = some_lists(seed)
    found = in_rows_of(width, models, lists, np.asarray(counts, np.int32))
    for place, count in enumerate(counts):
        scaled, pair, many = by_hand(models[place], lists[place], count)
        np.testing.assert_allclose(found["scaled"][place], scaled, rtol=1e-5)
        np.testing.assert_allclose(found["pair"][place], [pair, pair], rtol=1e-5)
        assert int(found["many"][place]) == many


def test_nested_vmap_with_shared_arguments() -> None:
    """Two sets of models and counts, four of lists; every combination."""
    models, lists = some_lists(1)
    both = np.stack([models, -models])
    four = np.stack([np.roll(lists, turn, axis=0) for turn in range(4)])
    counts = np.random.default_rng(2).integers(0, SLOTS, (2, 4, LISTS)).astype(np.int32)
    found = DEEP(np.broadcast_to(both[:, None], (2, 4, LISTS)), four, counts)
    assert found["pair"].shape == (2, 4, LISTS, 2)
    for place in np.ndindex(2, 4, LISTS):
        outer, inner, which = place
        scaled, pair, many = by_hand(both[outer, which], four[inner, which], counts[place])
        np.testing.assert_allclose(found["scaled"][place], scaled, rtol=1e-5)
        np.testing.assert_allclose(found["pair"][place], [pair, pair], rtol=1e-5)
        assert int(found["many"][place]) == many


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_model_that_is_not_finite_affects_no_other_list(broken: float) -> None:
    models, lists = some_lists(3)
    counts = np.full(LISTS, SLOTS - 5, np.int32)
    whole = in_rows_of(3, models, lists, counts)
    models[2] = broken
    found = in_rows_of(3, models, lists, counts)
    others = np.arange(LISTS) != 2
    assert not np.isfinite(found["scaled"][2])
    assert not np.any(np.isfinite(found["pair"][2]))
    for name in ("scaled", "pair"):
        np.testing.assert_array_equal(found[name][others], whole[name][others])


def test_empty_lists_are_not_computed() -> None:
    models, lists = some_lists(4)
    models[:] = np.nan  # would show
    found = in_rows_of(3, models, lists, np.zeros(LISTS, np.int32))
    assert not np.any(found["scaled"])
    assert not np.any(found["pair"])


@pytest.mark.slow
def test_the_memory_estimate_of_a_block_is_close_to_the_compilers() -> None:
    """A backward pass through CIFAR-10's network with a block of four trainers, against XLA's memory analysis."""
    network = ConvolutionalNetwork.init(jax.random.key(0))
    part = (Samples.init(BLOCK_SIZE, (32, 32, 3)), jnp.ones(BLOCK_SIZE, bool))
    estimated = 4 * computed_bytes(jax.grad(summed_loss), network, *part) / ragged.MEMORY_REUSE
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4, *leaf.shape)), (network, *part))
    analysis = jax.jit(jax.vmap(jax.grad(summed_loss))).lower(*stacked).compile().memory_analysis()
    assert analysis is not None
    assert analysis.temp_size_in_bytes < estimated < 2 * analysis.temp_size_in_bytes
