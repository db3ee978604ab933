"""Image transforms of a drifting camera: brightness, contrast, sharpness, position.

An appearance is a vector of ``NUM_TRANSFORMS`` numbers of order one; 0 leaves images as they are in the data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt8

from tandem.feel.types import Array

NUM_TRANSFORMS = 6
CONTRAST, BRIGHTNESS, ROTATION, RIGHT, DOWN, BLUR = range(NUM_TRANSFORMS)
# Effect of one unit of each transform.
CONTRAST_PER_UNIT = 0.35  # in the logarithm of the contrast
BRIGHTNESS_PER_UNIT = 0.15  # of the range of pixel values
ROTATION_PER_UNIT = 0.35  # rad, 20 degrees
SHIFT_PER_UNIT = 0.08  # of the width or height
BLUR_PER_UNIT = 0.35  # of the way to the mean of the neighbours

Images = Float[Array, "batch height width channels"]
Appearance = Float[Array, " transforms"]


def apply_drift(images: Images, appearance: Appearance) -> Images:
    """Transform images in [0, 1] to the given appearance, again in [0, 1]."""
    return _adjust_light(_blur(_move(images, appearance), appearance), appearance)


def shifted_view(
    images: UInt8[Array, "batch height width channels"], view: Int[Array, " batch"]
) -> UInt8[Array, "batch height width channels"]:
    """Return a view of each image: view 0 is the image itself, the others are shifted by one pixel to each side."""
    sides = [jnp.roll(images, step, axis) for axis in (1, 2) for step in (1, -1)]
    side = jnp.where(view > 0, (view - 1) % 4 + 1, 0)
    return jax.lax.select_n(jnp.broadcast_to(side[:, None, None, None], images.shape), images, *sides)


def _move(images: Images, appearance: Appearance) -> Images:
    """Rotate about the centre and shift, with bilinear interpolation; the edge is repeated outside of the image.

    One matrix for all images of an appearance: pixel p is taken from (row, column), so that pixel (i, j) enters with
    weight tri(row - i) tri(column - j), tri(x) = max(0, 1 - |x|).
    """
    batch, height, width, channels = images.shape
    middle = (height - 1) / 2, (width - 1) / 2
    down, right = (index.reshape(-1) for index in jnp.mgrid[:height, :width])
    down, right = down - middle[0], right - middle[1]
    angle = ROTATION_PER_UNIT * appearance[ROTATION]
    row = jnp.cos(angle) * down - jnp.sin(angle) * right + middle[0] - SHIFT_PER_UNIT * height * appearance[DOWN]
    column = jnp.sin(angle) * down + jnp.cos(angle) * right + middle[1] - SHIFT_PER_UNIT * width * appearance[RIGHT]
    rows, columns = _triangles(row, height), _triangles(column, width)
    weights = (rows[:, :, None] * columns[:, None, :]).reshape(height * width, height * width)
    return jnp.einsum("pq,bqc->bpc", weights, images.reshape(batch, -1, channels)).reshape(images.shape)


def _triangles(position: Float[Array, " pixels"], size: int) -> Float[Array, "pixels size"]:
    inside = jnp.clip(position, 0, size - 1)
    return jnp.maximum(0.0, 1 - jnp.abs(inside[:, None] - jnp.arange(size)))


def _blur(images: Images, appearance: Appearance) -> Images:
    """Blend each pixel with the mean of its 3 by 3 neighbourhood; both signs of the transform blur."""
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="edge")
    rows = padded[:, :-2] + padded[:, 1:-1] + padded[:, 2:]
    mean = (rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:]) / 9
    return images + jnp.minimum(BLUR_PER_UNIT * jnp.abs(appearance[BLUR]), 1.0) * (mean - images)


def _adjust_light(images: Images, appearance: Appearance) -> Images:
    """Change the contrast about middle grey, then the brightness, and clip to [0, 1]."""
    contrast = jnp.exp(CONTRAST_PER_UNIT * appearance[CONTRAST])
    brightness = BRIGHTNESS_PER_UNIT * appearance[BRIGHTNESS]
    return jnp.clip(0.5 + contrast * (images - 0.5) + brightness, 0.0, 1.0)
