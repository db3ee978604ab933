"""Gradient descent and averaging, compared with an independent NumPy implementation."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tandem.federated.data import Samples
from tandem.federated.fedavg import FedAvg, count_correct, federated_average, gradient
from tandem.federated.ragged import BLOCK_SIZE, capacity_for
from tandem.federated.tasks.models import ConvolutionalNetwork, Dense, Perceptron, weight_count

CAPACITY = 3 * BLOCK_SIZE
# Compiled once, as they are used.
gradient, local_update, count_correct = (eqx.filter_jit(f) for f in (gradient, FedAvg().local_update, count_correct))
federated_average = eqx.filter_jit(federated_average)


def some_samples(count: int, seed: int = 0, garbage: int = 0) -> Samples:
    """So many real samples, then padding that must not matter."""
    draw = np.random.default_rng(seed)
    images, labels = draw.integers(0, 256, (CAPACITY, 8, 8, 1)), draw.integers(0, 10, CAPACITY)
    images[count:] = garbage
    labels[count:] = garbage % 10
    return Samples(jnp.asarray(images, jnp.uint8), jnp.asarray(labels, jnp.int32))


def perceptron() -> Perceptron:
    return Perceptron.init(pixels=64, width=16, classes=10, key=jax.random.key(3))


def trained_by_hand(model: Perceptron, samples: Samples, count: int, iterations: int, rate: float) -> list[Any]:
    """U steps of w - eta grad, in double precision, with the chain rule written out."""
    w1, b1, w2, b2 = (
        np.asarray(leaf, np.float64)
        for leaf in (model.hidden.weight, model.hidden.bias, model.head.weight, model.head.bias)
    )
    x = np.asarray(samples.images, np.float64)[:count].reshape(count, -1) / 255 * 2 - 1
    target = np.eye(10)[np.asarray(samples.labels)[:count]]
    for _ in range(iterations):
        h = x @ w1 + b1
        a = np.where(h > 0, h, 0)
        logits = a @ w2 + b2
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        d_logits = (p - target) / count
        d_h = (d_logits @ w2.T) * (h > 0)
        w2, b2 = w2 - rate * a.T @ d_logits, b2 - rate * d_logits.sum(axis=0)
        w1, b1 = w1 - rate * x.T @ d_h, b1 - rate * d_h.sum(axis=0)
    return [w1, b1, w2, b2]


@pytest.mark.parametrize(("count", "iterations"), [(1, 1), (BLOCK_SIZE, 3), (BLOCK_SIZE + 5, 3), (CAPACITY, 2)])
def test_local_update_is_full_batch_gradient_descent(count: int, iterations: int) -> None:
    samples = some_samples(count, garbage=77)
    found = local_update(perceptron(), samples, jnp.asarray(count), jnp.asarray(float(iterations)), jnp.asarray(0.3))
    for leaf, by_hand in zip(
        jax.tree.leaves(found), trained_by_hand(perceptron(), samples, count, iterations, 0.3), strict=True
    ):
        np.testing.assert_allclose(leaf, by_hand, atol=2e-6)


@settings(deadline=None, max_examples=20)
@given(count=st.integers(0, CAPACITY), garbage=st.integers(0, 255))
def test_padding_does_not_matter(count: int, garbage: int) -> None:
    clean, dirty = (
        jax.tree.leaves(gradient(perceptron(), some_samples(count, garbage=g), jnp.asarray(count)))
        for g in (0, garbage)
    )
    for a, b in zip(clean, dirty, strict=True):
        np.testing.assert_array_equal(a, b)
    right = [count_correct(perceptron(), some_samples(count, garbage=g), jnp.asarray(count)) for g in (0, garbage)]
    assert right[0] == right[1] <= count


def test_without_samples_the_model_does_not_change() -> None:
    found = local_update(perceptron(), some_samples(0), jnp.asarray(0), jnp.asarray(3.0), jnp.asarray(1.0))
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(perceptron()), strict=True):
        np.testing.assert_array_equal(a, b)


def test_correct_answers_are_counted() -> None:
    samples, model = some_samples(40), perceptron()
    x = np.asarray(samples.images)[:40].reshape(40, -1) / 255 * 2 - 1
    hidden = np.maximum(x @ np.asarray(model.hidden.weight) + np.asarray(model.hidden.bias), 0)
    answers = np.argmax(hidden @ np.asarray(model.head.weight) + np.asarray(model.head.bias), axis=1)
    expected = int(np.sum(answers == np.asarray(samples.labels)[:40]))
    assert int(count_correct(model, samples, jnp.asarray(40))) == expected


def test_federated_average_by_hand() -> None:
    before = Dense(jnp.zeros((1, 2)), jnp.zeros(2))
    updates = Dense(jnp.asarray([[[1.0, 2.0]], [[5.0, 10.0]]]), jnp.asarray([[0.0, 4.0], [8.0, 0.0]]))
    after = federated_average(before, updates, jnp.asarray([30.0, 10.0]))  # three quarters and one
    np.testing.assert_allclose(after.weight, [[2.0, 4.0]])
    np.testing.assert_allclose(after.bias, [2.0, 3.0])


weights = hnp.arrays(np.float64, 4, elements=st.floats(0, 1000).map(lambda w: w if w > 1e-3 else 0.0))


@settings(deadline=None)
@given(
    models=hnp.arrays(np.float64, (4, 3), elements=st.floats(-100, 100)),
    samples=weights,
    order=st.permutations(range(4)),
)
def test_federated_average_is_the_weighted_mean(models: Any, samples: Any, order: list[int]) -> None:
    before = jnp.full(3, 7.0)

    def average(stack: Any, counts: Any) -> Any:
        return np.asarray(federated_average(before, jnp.asarray(stack, jnp.float32), jnp.asarray(counts, jnp.float32)))

    expected = np.average(models, axis=0, weights=samples) if samples.sum() > 0 else np.full(3, 7.0)
    np.testing.assert_allclose(average(models, samples), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(average(models[order], samples[order]), expected, rtol=1e-4, atol=1e-3)


def test_a_diverged_client_without_samples_does_not_enter_the_average() -> None:
    stack = jnp.asarray([[1.0], [jnp.nan]])
    assert federated_average(jnp.zeros(1), stack, jnp.asarray([5.0, 0.0])) == 1.0


def test_an_update_of_the_network_has_the_papers_size() -> None:
    weights = weight_count(ConvolutionalNetwork.init(jax.random.key(0)))
    assert weights == 50_154
    assert abs(4 * weights / 200_000 - 1) < 0.01  # G = 200 KB


def test_the_matrix_product_is_a_convolution() -> None:
    from scipy.signal import correlate

    images = jax.random.uniform(jax.random.key(1), (2, 6, 6, 3))
    layer = ConvolutionalNetwork.init(jax.random.key(0)).blocks[0].convolutions[0]
    kernel = np.asarray(layer.product.weight).reshape(3, 3, 3, -1)
    expected = sum(
        correlate(np.pad(np.asarray(images)[1, :, :, c], 1), kernel[:, :, c, 5], mode="valid") for c in range(3)
    )
    np.testing.assert_allclose(layer(images)[1, :, :, 5], expected, atol=1e-5)


def test_capacity_is_a_whole_number_of_blocks() -> None:
    counts = (0, 1, BLOCK_SIZE, BLOCK_SIZE + 1, 200)
    assert [capacity_for(count) // BLOCK_SIZE for count in counts] == [1, 1, 1, 2, 13]
    assert capacity_for(200) == 208
