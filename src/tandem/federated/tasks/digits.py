"""Handwritten digits of 8 by 8 pixels, as scikit-learn ships them: nothing to download."""

from __future__ import annotations

import numpy as np

from tandem.errors import InputError
from tandem.federated.data import LabelledImages

BRIGHTEST = 16  # of a pixel in scikit-learn's copy


def read_digits() -> LabelledImages:
    """All 1,797."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise InputError(
            "the task digits: its images come with scikit-learn, which is not installed; pip install scikit-learn."
        ) from None
    found = load_digits()
    images = np.rint(found.images * (255 / BRIGHTEST)).astype(np.uint8)[..., None]
    return LabelledImages(images, found.target.astype(np.int32))
