"""How an image looks to a camera that drifts: light, sharpness, position.

A look is a vector of ``LOOKS`` numbers of order one, 0 for images as they are in the data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt8

from tandem.feel.types import Array

NUM_TRANSFORMS = 6
CONTRAST, BRIGHTNESS, ROTATION, RIGHT, DOWN, BLUR = range(NUM_TRANSFORMS)
# What one unit of each does.
CONTRAST_PER_UNIT = 0.35  # logarithmic
BRIGHTNESS_PER_UNIT = 0.15  # of the range of a pixel
ROTATION_PER_UNIT = 0.35  # rad, 20 degrees
SHIFT_PER_UNIT = 0.08  # of the width
BLUR_PER_UNIT = 0.35  # of the way to the mean of the neighbours

Images = Float[Array, "batch height width channels"]
Look = Float[Array, " looks"]


def apply_drift(images: Images, look: Look) -> Images:
    """Images in [0, 1] under a look, again in [0, 1]."""
    return _lit(_blurred(_moved(images, look), look), look)


def shifted_view(
    images: UInt8[Array, "batch height width channels"], view: Int[Array, " batch"]
) -> UInt8[Array, "batch height width channels"]:
    """A request's second sample, third sample and so on: one pixel aside, in turn to each side; view 0 is the first."""
    sides = [jnp.roll(images, step, axis) for axis in (1, 2) for step in (1, -1)]
    side = jnp.where(view > 0, (view - 1) % 4 + 1, 0)
    return jax.lax.select_n(jnp.broadcast_to(side[:, None, None, None], images.shape), images, *sides)


def _moved(images: Images, look: Look) -> Images:
    """Rotated about the middle and shifted, by bilinear interpolation; what comes from outside repeats the edge.

    One matrix for all images of a look: pixel p is taken from (row, column), so that pixel (i, j) counts in it with
    tri(row - i) tri(column - j), tri(x) = max(0, 1 - |x|).
    """
    batch, height, width, channels = images.shape
    middle = (height - 1) / 2, (width - 1) / 2
    down, right = (index.reshape(-1) for index in jnp.mgrid[:height, :width])
    down, right = down - middle[0], right - middle[1]
    angle = ROTATION_PER_UNIT * look[ROTATION]
    row = jnp.cos(angle) * down - jnp.sin(angle) * right + middle[0] - SHIFT_PER_UNIT * height * look[DOWN]
    column = jnp.sin(angle) * down + jnp.cos(angle) * right + middle[1] - SHIFT_PER_UNIT * width * look[RIGHT]
    rows, columns = _triangles(row, height), _triangles(column, width)
    weights = (rows[:, :, None] * columns[:, None, :]).reshape(height * width, height * width)
    return jnp.einsum("pq,bqc->bpc", weights, images.reshape(batch, -1, channels)).reshape(images.shape)


def _triangles(position: Float[Array, " pixels"], size: int) -> Float[Array, "pixels size"]:
    inside = jnp.clip(position, 0, size - 1)
    return jnp.maximum(0.0, 1 - jnp.abs(inside[:, None] - jnp.arange(size)))


def _blurred(images: Images, look: Look) -> Images:
    """Towards the mean of each pixel's neighbourhood of 3 by 3; a camera out of focus either way is blurred."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    mean = (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / 9
    return images + jnp.minimum(BLUR_PER_UNIT * jnp.abs(look[BLUR]), 1.0) * (mean - images)


def _lit(images: Images, look: Look) -> Images:
    """Contrast about the middle grey, then brightness, then what a sensor can hold."""
    contrast, brightness = jnp.exp(CONTRAST_PER_UNIT * look[CONTRAST]), BRIGHTNESS_PER_UNIT * look[BRIGHTNESS]
    return jnp.clip(0.5 + contrast * (images - 0.5) + brightness, 0.0, 1.0)
