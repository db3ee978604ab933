"""Labelled images in padded lists: requests that wait, and the samples they become.

A list has a fixed capacity and a count kept beside it; what is past the count is padding. It is worked on in parts of
``PART`` images, as many as the count needs: shapes never change, and a list a tenth full costs a tenth.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, UInt8

from tandem.federated.appearance import another_view
from tandem.feel.types import Array, Count

PART = 32
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
        return Samples(self.images[index], self.labels[index])

    def part(self, number: Count) -> Samples:
        """Those from ``number * PART`` on."""
        cut: Samples = jax.tree.map(lambda leaf: leaf.reshape(-1, PART, *leaf.shape[1:])[number], self)
        return cut

    def followed_by(self, count: Count, others: Samples) -> Samples:
        """The first ``count`` of them, then the others, as far as there are slots."""
        slot = jnp.arange(self.slots)
        joined = others.at(jnp.clip(slot - count, 0, others.slots - 1))

        def choose(old: Array, new: Array) -> Array:
            return jnp.where((slot < count).reshape(-1, *(1,) * (old.ndim - 1)), old, new)

        both: Samples = jax.tree.map(choose, self, joined)
        return both

    def seen_again(self, view: Int[Array, " slots"]) -> Samples:
        """From another point of view, where a request becomes several samples."""
        return Samples(another_view(self.images, view), self.labels)


def capacity_for(count: float) -> int:
    """The smallest whole number of parts that holds this many."""
    return max(1, -(-int(count) // PART)) * PART


def over_parts(count: Count, start: Any, body: Callable[[Count, Bool[Array, " part"], Any], Any]) -> Any:
    """Fold ``body(number, valid, carry)`` over the parts that hold the first ``count`` of a list."""

    def one(carry: tuple[Count, Any]) -> tuple[Count, Any]:
        number, folded = carry
        valid = number * PART + jnp.arange(PART) < count
        return number + 1, body(number, valid, folded)

    return jax.lax.while_loop(lambda carry: carry[0] * PART < count, one, (jnp.zeros((), jnp.int32), start))[1]
