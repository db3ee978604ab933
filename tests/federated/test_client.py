"""Requests arrive, are served, become samples and are trained on: worked examples, and invariants of any sequence."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.federated import client
from tandem.federated.client import ClientState
from tandem.federated.data import Pool, sample_requests
from tandem.federated.drift import DriftParameters, init_device_drift
from tandem.federated.tasks.models import Perceptron
from tandem.scenario.plugins import DriftConfig

NO_DRIFT = DriftParameters.from_config(DriftConfig(appearance=0, classes=0))
DRIFT = init_device_drift(jax.random.key(5), jnp.asarray(0), 10)
QUEUE, BUFFER, AT_ONCE = 64, 64, 40


def fresh() -> ClientState:
    model = Perceptron.init(pixels=4, width=3, classes=10, key=jax.random.key(0))
    return ClientState.init(model, jnp.asarray(0.5), (2, 2, 1), QUEUE, BUFFER)


@eqx.filter_jit
def _receive(device: ClientState, pool: Pool, admitted: Any) -> ClientState:
    return client.enqueue(device, pool, NO_DRIFT, DRIFT, admitted, jnp.zeros(()), AT_ONCE)


# Numbers are passed as arrays: Python numbers would be compile-time constants.
def receive(device: ClientState, pool: Pool, admitted: float) -> ClientState:
    return _receive(device, pool, jnp.asarray(admitted, float))


_serve, _finish = eqx.filter_jit(client.serve), eqx.filter_jit(client.finish_training)


def serve(device: ClientState, serving: bool, factor: float, limit: float) -> ClientState:
    return _serve(device, jnp.asarray(serving), jnp.asarray(factor, float), jnp.asarray(limit, float))


def finish(device: ClientState, train: bool, in_time: bool) -> ClientState:
    return _finish(device, jnp.asarray(train), jnp.asarray(in_time), device.model)


def waiting(device: ClientState) -> list[int]:
    return [int(n) for n in np.asarray(device.waiting.images)[: int(device.waiting_count), 0, 0, 0]]


def buffered(device: ClientState) -> list[int]:
    """The images of the samples; another view is one pixel aside, and keeps its number in another pixel."""
    images = np.asarray(device.buffer.images)[: int(device.buffer_count)]
    return [int(image.max()) for image in images]


def test_fractions_of_requests_are_carried_over(numbered_pool: Pool) -> None:
    device = fresh()
    counts = []
    for _ in range(4):
        device = receive(device, numbered_pool, 2.75)
        counts.append(int(device.waiting_count))
    assert counts == [2, 5, 8, 11]  # 2.75, 5.5, 8.25, 11


def test_a_request_depends_on_its_serial_number_alone(numbered_pool: Pool) -> None:
    at_once = receive(fresh(), numbered_pool, 12.0)
    in_parts = receive(receive(fresh(), numbered_pool, 5.0), numbered_pool, 7.0)
    assert waiting(at_once) == waiting(in_parts)
    assert waiting(at_once) == [
        int(n)
        for n in eqx.filter_jit(sample_requests)(numbered_pool, NO_DRIFT, DRIFT, jnp.arange(12), jnp.zeros(())).images[
            :, 0, 0, 0
        ]
    ]


@pytest.mark.parametrize(
    ("factor", "sources"),
    [
        (1.0, [0, 1, 2, 3, 4]),
        (0.5, [1, 3]),  # of two requests the later; the fifth waits for a sixth
        (2.0, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (1.5, [0, 1, 1, 2, 3, 3, 4]),
    ],
)
def test_requests_become_samples(numbered_pool: Pool, factor: float, sources: list[int]) -> None:
    device = receive(fresh(), numbered_pool, 5.0)
    images = waiting(device)
    device = serve(device, True, factor, 60.0)
    assert buffered(device) == [images[source] for source in sources]
    assert int(device.waiting_count) == 0


def test_a_request_without_a_sample_counts_for_the_next(numbered_pool: Pool) -> None:
    device = serve(receive(fresh(), numbered_pool, 5.0), True, 0.5, 60.0)
    device = receive(device, numbered_pool, 3.0)
    images = waiting(device)
    device = serve(device, True, 0.5, 60.0)
    assert buffered(device)[2:] == [images[0], images[2]]  # the fifth with the sixth, the seventh with the eighth


def test_views_of_one_request_differ(numbered_pool: Pool) -> None:
    device = serve(receive(fresh(), numbered_pool, 1.0), True, 2.0, 60.0)
    samples = [bytes(np.asarray(image)) for image in device.buffer.images[:2]]
    assert len(set(samples)) == 2
    assert len(set(np.asarray(device.buffer.labels)[:2])) == 1


def test_overflow_is_counted(numbered_pool: Pool) -> None:
    device = fresh()
    for _ in range(2):
        device = receive(device, numbered_pool, 40.0)
    assert int(device.waiting_count) == QUEUE
    assert int(device.counters.unkept_requests) == 80 - QUEUE
    device = serve(device, True, 1.0, 50.9)
    assert (int(device.buffer_count), int(device.counters.discarded)) == (50, QUEUE - 50)
    device = receive(fresh(), numbered_pool, 50.0)  # more than are worked on in a round
    assert (int(device.waiting_count), int(device.counters.unkept_requests)) == (AT_ONCE, 10)


def test_a_client_that_does_not_serve_is_unchanged(numbered_pool: Pool) -> None:
    device = receive(fresh(), numbered_pool, 9.0)
    after = serve(device, False, 1.0, 60.0)
    assert waiting(after) == waiting(device)
    assert (int(after.buffer_count), float(after.accuracy), int(after.counters.served)) == (0, 0.5, 0)


def test_a_late_update_loses_its_samples_and_leaves_the_model(numbered_pool: Pool) -> None:
    device = serve(receive(fresh(), numbered_pool, 9.0), True, 1.0, 60.0)
    other = jax.tree.map(lambda leaf: leaf + 1, device.model)
    late = _finish(device, jnp.asarray(True), jnp.asarray(False), other)
    assert (int(late.buffer_count), int(late.counters.lost), int(late.counters.trained)) == (0, 9, 0)
    assert jax.tree.all(jax.tree.map(np.array_equal, late.model, device.model))
    in_time = _finish(device, jnp.asarray(True), jnp.asarray(True), other)
    assert (int(in_time.counters.lost), int(in_time.counters.trained)) == (0, 9)
    assert jax.tree.all(jax.tree.map(np.array_equal, in_time.model, other))


rounds = st.lists(
    st.tuples(st.floats(0, 45, width=32), st.sampled_from(["serve", "train", "late"])), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=40)
@given(course=rounds, factor=st.sampled_from([0.25, 1 / 3, 0.5, 1.0, 1.5, 2.0, 3.0]), limit=st.floats(1, 64))
def test_requests_and_samples_are_conserved(
    numbered_pool: Pool, course: list[tuple[float, str]], factor: float, limit: float
) -> None:
    device, fluid, trained_on = fresh(), 0.0, 0
    for admitted, mode in course:
        if mode == "serve":
            device = serve(device, True, factor, limit)
        else:
            trained_on += int(device.buffer_count) if mode == "train" else 0
            device = finish(device, True, mode == "train")
        device = receive(device, numbered_pool, admitted)
        fluid += admitted
        tally = {name: int(count) for name, count in vars(device.counters).items()}
        assert abs(tally["requests"] - fluid) < 1.01
        assert tally["requests"] == tally["unkept_requests"] + tally["served"] + int(device.waiting_count)
        assert abs(tally["samples"] - factor * tally["served"]) < 1.01
        assert tally["samples"] == (
            tally["discarded"] + tally["trained"] + tally["lost"] + int(device.buffer_count)
        )  # each sample has one fate, so none is trained on twice
        assert tally["trained"] == trained_on
        assert int(device.buffer_count) <= limit
        assert 0 <= tally["correct"] <= tally["served"]


def test_nothing_compiles_twice(numbered_pool: Pool) -> None:
    program = jax.jit(client.serve)
    device = fresh()
    for admitted in (0.0, 3.5, 40.0):
        device = program(
            receive(device, numbered_pool, admitted), jnp.asarray(True), jnp.asarray(1.0), jnp.asarray(60.0)
        )
    assert program._cache_size() == 1
