"""Marks for parametrised tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, values: Iterable[Any]) -> list[Any]:
    """Mark all but the first ``count`` values of a parameter as slow, so that the default run tests only those."""
    return [value if n < count else pytest.param(value, marks=pytest.mark.slow) for n, value in enumerate(values)]
