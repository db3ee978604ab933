"""Generated requests: none makes a device fail, and every answer has a status and a type of the description."""

from __future__ import annotations

from pathlib import Path

import httpx
import schemathesis
from device_processes import start
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance


def test_requests_from_the_description(tmp_path: Path) -> None:
    with start(tmp_path, "linear_model:build", "--wait", "5") as device:
        schema = schemathesis.openapi.from_url(f"{device.url}/openapi.json")
        tested = 0
        for found in schema.get_all_operations():

            @given(case=found.ok().as_strategy())
            @settings(
                max_examples=25,
                phases=[Phase.explicit, Phase.generate],
                deadline=None,
                suppress_health_check=list(HealthCheck),
                derandomize=True,
            )
            def check(case: schemathesis.Case) -> None:
                # The shape of inputs and the ids of requests cannot be described, so valid bodies may be refused.
                case.call_and_validate(excluded_checks=[positive_data_acceptance])

            check()
            tested += 1
        assert tested == 6
        assert httpx.post(f"{device.url}/predict", json={"input": [1, 0, 0, 0]}).status_code == 200
