"""Generated requests: none makes the service fail, every answer is as described, every valid report is decided."""

from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance
from servers import SIZE, body_of, post, serving

from tandem.serving.bodies import _LARGEST, _LARGEST_GAIN, DecisionDocument

COMMON = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_requests_from_the_description(examples: int, service_policy: Path, tmp_path: Path) -> None:
    """schemathesis, against a real server: no 5xx, and statuses, types and documents are those of the description."""
    with serving(service_policy, str(tmp_path / "tandem.db"), "--max-rate", 0) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        tested = 0
        for found in schema.exclude(path="/v1/events").get_all_operations():
            operation = found.ok()

            @given(case=operation.as_strategy())
            @settings(max_examples=examples, phases=[Phase.explicit, Phase.generate], **COMMON)  # type: ignore[arg-type]
            def check(case: schemathesis.Case) -> None:
                # Lists of equal length and known devices cannot be described, so valid bodies may be refused.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            check()
            tested += 1
        assert tested == 14
        assert httpx.get(f"{server.url}/readyz").status_code == 200


def column(largest: float) -> Any:
    # Zero, the smallest and the largest values are where single precision overflows or divides by zero.
    value = st.one_of(st.floats(0, largest), st.sampled_from([0.0, 5e-324, 1e-40, 1e-9, 1.0, 1e9, largest]))
    return st.lists(value, min_size=SIZE, max_size=SIZE)


def booleans() -> Any:
    return st.lists(st.booleans(), min_size=SIZE, max_size=SIZE)


REPORTS = st.fixed_dictionaries(
    {
        "devices": st.permutations([f"device-{n}" for n in range(SIZE)]),
        "queue": column(_LARGEST),
        "data": column(_LARGEST),
        "last_duration_s": st.floats(0, _LARGEST),
        "last_train": booleans(),
        "last_power_w": column(_LARGEST),
        "last_frequency_hz": column(_LARGEST),
        "waited_s": column(_LARGEST),
        "data_age_s": column(_LARGEST),
        "model_age_s": column(_LARGEST),
        "model_accuracy": column(1.0),
        "last_gain": column(_LARGEST_GAIN),
        "present": booleans(),
    }
)


def test_extreme_reports_are_decided_or_refused_by_field(http: TestClient) -> None:
    numbers = iter(range(100_000))

    @given(report=REPORTS)
    @settings(max_examples=100, **COMMON)  # type: ignore[arg-type]
    def check(report: dict[str, Any]) -> None:
        response = post(http, "/v1/decisions", body_of({"round": next(numbers), **report}))
        assert response.status_code in (200, 422), response.text
        if response.status_code == 422:
            assert response.json()["errors"]
            return
        decision = DecisionDocument.model_validate_json(response.content)
        assert all(0 < value < 1e12 for value in decision.frequency_hz)
        assert all(0 <= value < 1e3 for value in decision.power_w)
        late = [name for name, here in zip(report["devices"], report["present"], strict=True) if not here]
        assert decision.late == late
        modes = dict(zip(decision.devices, decision.mode, strict=True))
        assert all(modes[name] == "serve" for name in late)

    check()
