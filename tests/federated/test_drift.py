"""Drift is smooth, differs between devices, and depends on the seed alone."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.ndimage
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.federated.data import Pool, sample_requests
from tandem.federated.drift import DeviceDrift, DriftParameters, drift_at, init_device_drift
from tandem.federated.image_drift import NUM_TRANSFORMS, ROTATION_PER_UNIT, SHIFT_PER_UNIT, apply_drift, shifted_view
from tandem.scenario.plugins import DriftConfig

PARAMETERS = DriftParameters.from_config(DriftConfig())
# Compiled once, as they are used.
drift_at, sample_requests, apply_drift = (eqx.filter_jit(f) for f in (drift_at, sample_requests, apply_drift))


@eqx.filter_jit
def draw(seed: Any, device: Any) -> DeviceDrift:
    return init_device_drift(jax.random.key(seed), device, 10)


def drift_of(device: int, seed: int = 0) -> DeviceDrift:
    return draw(jnp.asarray(seed), jnp.asarray(device))


def test_there_is_no_drift_at_time_0() -> None:
    shares, look = drift_at(drift_of(3), PARAMETERS, 10, jnp.zeros(()))
    np.testing.assert_allclose(shares, 0.1)
    np.testing.assert_array_equal(look, 0)


def test_devices_share_a_part_of_the_drift() -> None:
    times = jnp.linspace(0, 3000, 200)

    def features(parameters: DriftParameters, device: int) -> np.ndarray:
        return np.asarray(jax.vmap(lambda t: drift_at(drift_of(device), parameters, 10, t)[1])(times))

    alike = [features(DriftParameters.from_config(DriftConfig(shared=1)), n) for n in (0, 1)]
    np.testing.assert_array_equal(*alike)
    apart = [features(DriftParameters.from_config(DriftConfig(shared=0)), n) for n in (0, 1)]
    between = [features(PARAMETERS, n) for n in (0, 1)]

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.mean((a - b) ** 2))

    assert 0 < distance(*between) < distance(*apart)


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 1000), time_s=st.floats(-5, 1e5))
def test_class_shares_are_positive_and_sum_to_1(seed: int, time_s: float) -> None:
    shares, look = drift_at(drift_of(1, seed), PARAMETERS, 10, jnp.asarray(time_s))
    assert np.all(np.asarray(shares) > 0)
    np.testing.assert_allclose(np.sum(shares), 1, atol=1e-5)
    assert np.all(np.isfinite(look))


def test_drift_grows_smoothly_with_time() -> None:
    """Over many seeds, the distance from time 0 grows and saturates within a few time scales."""

    def far(time_s: float) -> float:
        looks = [drift_at(drift_of(0, seed), PARAMETERS, 10, jnp.asarray(time_s))[1] for seed in range(60)]
        return float(np.mean(np.square(looks)))

    distances = [far(t) for t in (1, 10, 50, 300)]
    assert distances == sorted(distances)
    assert distances[0] < 0.01
    assert 1.5 < distances[-1] < 2.5  # 2 (1 - correlation)


def test_requests_follow_the_class_shares(numbered_pool: Pool) -> None:
    time_s = jnp.asarray(200.0)
    shares, _ = drift_at(drift_of(0), PARAMETERS, 10, time_s)
    labels = sample_requests(numbered_pool, PARAMETERS, drift_of(0), jnp.arange(20_000), time_s).labels
    found = np.bincount(np.asarray(labels), minlength=10) / 20_000
    np.testing.assert_allclose(found, shares, atol=0.015)


def test_appearance_0_changes_nothing() -> None:
    images = jax.random.uniform(jax.random.key(0), (3, 8, 8, 1))
    np.testing.assert_allclose(apply_drift(images, jnp.zeros(NUM_TRANSFORMS)), images, atol=1e-5)


@pytest.mark.parametrize(("rotation", "right", "down"), [(1.0, 0.0, 0.0), (0.0, 1.5, 0.0), (-2.0, 0.7, -1.3)])
def test_moving_is_bilinear_interpolation(rotation: float, right: float, down: float) -> None:
    image = np.asarray(jax.random.uniform(jax.random.key(2), (9, 7)))
    found = apply_drift(jnp.asarray(image)[None, :, :, None], jnp.asarray([0, 0, rotation, right, down, 0.0]))
    angle = ROTATION_PER_UNIT * rotation
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = np.array([4.0, 3.0])
    offset = middle - turn @ middle - SHIFT_PER_UNIT * np.array([9 * down, 7 * right])
    expected = scipy.ndimage.affine_transform(image, turn, offset, order=1, mode="nearest")
    np.testing.assert_allclose(found[0, :, :, 0], expected, atol=1e-5)


@settings(deadline=None, max_examples=20)
@given(look=st.lists(st.floats(-20, 20), min_size=NUM_TRANSFORMS, max_size=NUM_TRANSFORMS))
def test_pixels_stay_within_bounds(look: list[float]) -> None:
    images = jax.random.uniform(jax.random.key(0), (2, 4, 4, 3))
    found = np.asarray(apply_drift(images, jnp.asarray(look)))
    assert found.min() >= 0
    assert found.max() <= 1


def test_the_first_view_is_the_image_itself() -> None:
    images = jax.random.randint(jax.random.key(0), (6, 4, 4, 1), 0, 255).astype(jnp.uint8)
    views = shifted_view(images, jnp.arange(6))
    np.testing.assert_array_equal(views[0], images[0])
    np.testing.assert_array_equal(views[1], jnp.roll(images[1], 1, 0))
    np.testing.assert_array_equal(views[4], jnp.roll(images[4], -1, 1))
    np.testing.assert_array_equal(views[5], jnp.roll(images[5], 1, 0))  # after four sides the first again
