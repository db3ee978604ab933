"""Handwritten digits of 8 by 8 pixels, which are part of scikit-learn and need no download."""

from __future__ import annotations

import numpy as np

from tandem.errors import InputError
from tandem.federated.data import LabelledImages

WHITE = 16  # value of the brightest pixel in scikit-learn


def read_digits() -> LabelledImages:
    """Read all 1,797 images."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "the task digits: its images are part of scikit-learn, which is not installed; pip install scikit-learn."
        ) from None
    digits = load_digits()
    images = np.rint(digits.images * (255 / WHITE)).astype(np.uint8)[..., None]
    return LabelledImages(images, digits.target.astype(np.int32))
