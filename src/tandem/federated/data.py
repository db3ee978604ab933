"""Labelled images in padded lists: requests that wait, and the samples they become.

A list has a fixed capacity and a count kept beside it; what is past the count is padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray

from tandem.federated.drift import DeviceDrift, DriftParameters, drift_at
from tandem.federated.image_drift import apply_drift, shifted_view
from tandem.feel.types import Array, Count, Scalar

WHITE = 255.0  # the brightest pixel


class Samples(eqx.Module):
    """Images as a camera gives them, and the labels that users give."""

    images: UInt8[Array, "slots height width channels"]
    labels: Int[Array, " slots"]

    @classmethod
    def init(cls, slots: int, shape: tuple[int, ...]) -> Samples:
        """An empty list of this capacity, for images of this shape."""
        return cls(jnp.zeros((slots, *shape), jnp.uint8), jnp.zeros(slots, jnp.int32))

    @property
    def slots(self) -> int:
        """The capacity."""
        return self.labels.shape[0]

    @property
    def pixels(self) -> Float[Array, "slots height width channels"]:
        """What a model is given: from 0 to 1."""
        return self.images.astype(jnp.float32) / WHITE

    def at(self, index: Int[Array, " chosen"]) -> Samples:
        """Some of them."""
        chosen: Samples = jax.tree.map(lambda leaf: leaf[index], self)
        return chosen

    def append(self, count: Count, others: Samples) -> Samples:
        """The first ``count`` of them, then the others, as far as there are slots."""
        # Put there and not chosen slot by slot, or a compiler would make the others anew for every slot.
        place = count + jnp.arange(others.slots)

        def put(old: Array, new: Array) -> Array:
            return old.at[place].set(new, mode="drop", unique_indices=True, indices_are_sorted=True)

        both: Samples = jax.tree.map(put, self, others)
        return both

    def merge_from(self, count: Count, others: Samples) -> Samples:
        """The first ``count`` of them, and in the slots behind, the others' in the same slots."""

        def choose(old: Array, new: Array) -> Array:
            return jnp.where((jnp.arange(self.slots) < count).reshape(-1, *(1,) * (old.ndim - 1)), old, new)

        both: Samples = jax.tree.map(choose, self, others)
        return both

    def augment(self, view: Int[Array, " slots"]) -> Samples:
        """From another point of view, where a request becomes several samples."""
        return Samples(shifted_view(self.images, view), self.labels)


@dataclass(frozen=True)
class LabelledImages:
    """Images as a data set has them."""

    images: NDArray[np.uint8]  # [images, height, width, channels]
    labels: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.labels)


class Pool(eqx.Module):
    """The images that requests are made of, sorted by class."""

    images: UInt8[Array, "images height width channels"]
    labels: Int[Array, " images"]
    first: Int[Array, " classes+1"]  # of each class, and one past the last

    @classmethod
    def from_images(cls, data: LabelledImages, classes: int) -> Pool:
        """Sorted; every class must be there."""
        order = np.argsort(data.labels, kind="stable")
        labels = data.labels[order]
        first = np.searchsorted(labels, np.arange(classes + 1))
        return cls(jnp.asarray(data.images[order]), jnp.asarray(labels), jnp.asarray(first, jnp.int32))

    @property
    def classes(self) -> int:
        """How many there are."""
        return self.first.shape[0] - 1


def sample_requests(
    pool: Pool, drift: DriftParameters, world: DeviceDrift, serial: Int[Array, " slots"], time_s: Scalar
) -> Samples:
    """The requests with these serial numbers of a device, if they come at this time, with the label they will get."""
    shares, look = drift_at(world, drift, pool.classes, time_s)

    def draw(number: Array) -> Array:
        return jax.random.uniform(jax.random.fold_in(world.requests, number), (2,))

    uniform = jax.vmap(draw)(serial)
    label = jnp.searchsorted(jnp.cumsum(shares)[:-1], uniform[:, 0], method="compare_all")
    size = pool.first[label + 1] - pool.first[label]
    which = pool.first[label] + jnp.minimum((uniform[:, 1] * size).astype(jnp.int32), size - 1)
    images = apply_drift(pool.images[which].astype(jnp.float32) / WHITE, look)
    return Samples(jnp.round(images * WHITE).astype(jnp.uint8), pool.labels[which])
