"""Labelled images in padded lists: requests that wait, and the samples they become.

A list has a fixed capacity and a count kept beside it; what is past the count is padding.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, UInt8

from tandem.federated.appearance import another_view
from tandem.feel.types import Array, Count

WHITE = 255.0  # the brightest pixel


class Samples(eqx.Module):
    """Images as a camera gives them, and the labels that users give."""

    images: UInt8[Array, "slots height width channels"]
    labels: Int[Array, " slots"]

    @classmethod
    def none(cls, slots: int, shape: tuple[int, ...]) -> Samples:
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

    def followed_by(self, count: Count, others: Samples) -> Samples:
        """The first ``count`` of them, then the others, as far as there are slots."""
        # Put there and not chosen slot by slot, or a compiler would make the others anew for every slot.
        place = count + jnp.arange(others.slots)

        def put(old: Array, new: Array) -> Array:
            return old.at[place].set(new, mode="drop", unique_indices=True, indices_are_sorted=True)

        both: Samples = jax.tree.map(put, self, others)
        return both

    def from_slot(self, count: Count, others: Samples) -> Samples:
        """The first ``count`` of them, and in the slots behind, the others' in the same slots."""

        def choose(old: Array, new: Array) -> Array:
            return jnp.where((jnp.arange(self.slots) < count).reshape(-1, *(1,) * (old.ndim - 1)), old, new)

        both: Samples = jax.tree.map(choose, self, others)
        return both

    def seen_again(self, view: Int[Array, " slots"]) -> Samples:
        """From another point of view, where a request becomes several samples."""
        return Samples(another_view(self.images, view), self.labels)
