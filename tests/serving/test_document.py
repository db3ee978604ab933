"""The examples of docs/serving.md run, and the metrics and alerts of docs/serving-http.md are those of the service."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from tandem.runs import Run
from tandem.serving import PolicyFile, Scheduler, write_policy_file
from tandem.serving.export import export_run
from tandem.serving.metrics import Metrics
from tandem.serving.numpy_policy import build_policy
from tandem.serving.policy_file import _expected_arrays

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
REPORT = "\nimport sys; np.savez(sys.argv[1], train=train, power_w=power_w, frequency_hz=frequency_hz)\n"


@pytest.fixture(scope="module")
def exported(conditioned_run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[PolicyFile, Path]:
    folder = tmp_path_factory.mktemp("served")
    file = export_run(conditioned_run)
    write_policy_file(folder / "policy.safetensors", file)
    return file, folder


def run_example(code: str, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_example_with_the_scheduler_runs(exported: tuple[PolicyFile, Path]) -> None:
    first, *_ = examples()
    code = f"{first}\nimport sys; assert 'jax' not in sys.modules"
    printed = run_example(code.replace("max_latency_s=5.0", "max_latency_s=50.0"), exported[1])
    assert "Policy" in printed
    assert "serves with" in printed or "trains with" in printed


def test_example_with_numpy_alone_computes_the_network(exported: tuple[PolicyFile, Path]) -> None:
    file, folder = exported
    *_, code = examples()
    assert "tandem." not in code
    run_example(code + REPORT + "assert 'tandem' not in sys.modules", folder, "result.npz")
    found = np.load(folder / "result.npz")
    fleet = Scheduler(file).fleet
    preference = file.arrays["front.preferences"][0].astype(np.float32)
    policy = build_policy(file, int(file.arrays["front.network"][0]), preference, fleet)
    devices = fleet.devices
    rows = [0.0, 0.0, 0.4, 20.0, 60.0, 4.0, 30.0, 2.5, 0.6, 17.0]
    observed = np.repeat(np.array(rows, np.float32)[:, None], fleet.size, axis=1)
    observed[1] = devices.power_min_w
    observed[2] = devices.frequency_min_hz + np.float32(0.4) * (devices.frequency_max_hz - devices.frequency_min_hz)
    observed[9] /= 10
    logits = policy.forward(*policy.normalise(observed, 2.5))
    unit = np.clip(1.2 / (1 + np.exp(-logits.astype(np.float64))) - 0.1, 0, 1)
    np.testing.assert_array_equal(found["train"], logits[0] > 0)
    np.testing.assert_allclose(found["power_w"], policy.constants.power_w(unit[1]), rtol=1e-4)
    np.testing.assert_allclose(found["frequency_hz"], policy.constants.frequency_hz(unit[2]), rtol=1e-4)


def test_every_array_is_in_the_document(exported: tuple[PolicyFile, Path]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in _expected_arrays(dict(exported[0].arrays), exported[0].metadata):
        part, _, rest = name.partition(".")
        shown = {
            "network": "network.<layer>",
            "devices": "devices.*",
            "observation": name,
            "worst_case": "worst_case.*",
        }
        shown |= {"normaliser": "normaliser.{devices,constants,fleet}"}
        assert shown.get(part, rest.split(".")[0]) in text, name
    for name in exported[0].metadata:
        assert f"`{name}`" in text, name


def test_documented_metrics_and_alerts_are_those_of_the_service() -> None:
    text = DOCUMENT.with_name("serving-http.md").read_text(encoding="utf-8")
    metrics = Metrics()
    metrics.requests.labels("GET", "/healthz", "200").inc()
    families = list(metrics.registry.collect())
    samples = {sample.name for family in families for sample in family.samples}
    # A counter is shown with its suffix, a histogram without.
    shown = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    used = set(re.findall(r"\btandem_[a-z_]+", text))
    assert shown <= used
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    (rules,) = (group["rules"] for block in blocks for group in yaml.safe_load(block).get("groups", ()))
    in_rules = {name for rule in rules for name in re.findall(r"\btandem_[a-z_]+", rule["expr"])}
    for name in in_rules - samples:  # a metric with labels has no samples before its first use
        assert name in shown or name.removesuffix("_bucket") in shown, name
    assert used - samples <= shown | in_rules
