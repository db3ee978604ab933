"""Results agree with those stored in ``data``, which were first computed by the code before the vocabulary changed.

They are equal to the bit on the machine that stored them; processors round differently, hence the tolerance.
"""

import json
from typing import Any

import numpy as np
import pytest
from golden_cases import CASES, DATA, simulate, train

from marks import slow_after
from tandem.learn import ALGORITHMS
from tandem.policy import HEURISTICS

TOLERANCE = 1e-5


def stored(case: str) -> Any:
    return json.loads((DATA / f"{case}.json").read_text(encoding="utf-8"))


def assert_agree(found: Any, expected: Any, place: str) -> None:
    if isinstance(expected, dict):
        assert set(found) >= set(expected), place
        for key, value in expected.items():
            assert_agree(found[key], value, f"{place}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for index, value in enumerate(expected):
            assert_agree(found[index], value, f"{place}[{index}]")
    elif isinstance(expected, float):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE, err_msg=place)
    else:
        assert found == expected, place


@pytest.mark.parametrize("shield", ["shield", "no-shield"])
@pytest.mark.parametrize("heuristic", slow_after(3, HEURISTICS))
def test_summary_of_a_heuristic(heuristic: str, shield: str) -> None:
    assert_agree(simulate(heuristic, shield == "shield"), stored("simulate")[heuristic][shield], heuristic)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_front_of_an_algorithm(algorithm: str) -> None:
    assert_agree(train(algorithm), stored("train")[algorithm], algorithm)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["calibrate", "fleet"])
def test_real_models(case: str, cache: None) -> None:
    assert_agree(CASES[case](), stored(case), case)
