"""Adapters: Tandem's tasks train as the simulator's clients do, and a PyTorch module as PyTorch does."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from device_processes import start

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.usefixtures("cache")
def test_task_predicts_and_trains_as_clients_of_the_simulator_do() -> None:
    import jax.numpy as jnp

    from tandem.device.model import check_model
    from tandem.federated import FedAvg, Samples
    from tandem.federated.simulation import load_task
    from tandem.federated.task_model import digits
    from tandem.io.tree_io import flatten_arrays
    from tandem.scenario.plugins import DigitsTaskConfig

    model = digits()
    check_model(model, "digits")
    pool, pretrained = load_task(DigitsTaskConfig())
    images, labels = np.asarray(pool.images[::20]), np.asarray(pool.labels[::20])
    inputs = images.astype(np.float32) / 255
    scores = model.predict(inputs)
    np.testing.assert_allclose(scores, pretrained.model(jnp.asarray(inputs)), atol=1e-5)
    assert (scores.argmax(axis=1) == labels).mean() > 0.9

    model.train(inputs, labels.astype(np.int64), 3)
    samples = Samples(jnp.asarray(np.pad(images, ((0, 64 - len(images)),) + ((0, 0),) * 3)), jnp.zeros(64, jnp.int32))
    samples = Samples(samples.images, samples.labels.at[: len(labels)].set(labels))
    count, iterations, rate = jnp.asarray(len(labels)), jnp.asarray(3.0), jnp.asarray(DigitsTaskConfig().learning_rate)
    expected = flatten_arrays(FedAvg().local_update(pretrained.model, samples, count, iterations, rate))
    for name, array in model.get_weights().items():
        np.testing.assert_allclose(array, expected[name], atol=1e-5)
    model.set_weights(flatten_arrays(pretrained.model))
    np.testing.assert_allclose(model.predict(inputs), scores, atol=1e-6)


@pytest.mark.extras
def test_torch_example_serves_and_learns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The documented example, as a process: asked, told the answers, trained over several rounds."""
    pytest.importorskip("torch")
    sys.path.insert(0, str(ROOT / "examples"))
    import torch_device

    assert len((ROOT / "examples/torch_device.py").read_text().splitlines()) < 60
    factory = "torch_device:build"
    with start(tmp_path, factory, folders=[ROOT / "examples"]) as device:
        torch_device.main(device.url)
        before = int(capsys.readouterr().out.split()[0])
        weights = torch_device.build().get_weights()
        report = device.instruct(round=0, train=True, weights=weights, iterations=100)
        assert (report.trained, report.samples) == (True, 200)
        device.instruct(round=1, weights=report.weights, acknowledged=0)
        torch_device.main(device.url)
        after = int(capsys.readouterr().out.split()[0])
        assert before < 60  # of 200, by an untrained network
        assert after > 180
        assert httpx.get(f"{device.url}/status").json()["model_round"] == 0


@pytest.mark.extras
def test_torch_model_trains_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    from tandem.device import TorchModel

    torch.manual_seed(1)
    module = torch.nn.Linear(4, 3)
    model = TorchModel(module, (4,), 3, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    rng = np.random.default_rng(0)
    inputs, labels = rng.random((10, 4)).astype(np.float32), rng.integers(0, 3, 10)
    weight, bias = (value.astype(np.float64) for value in model.get_weights().values())
    for _ in range(2):  # the gradient of the cross entropy, by hand
        shares = np.exp(inputs @ weight.T + bias)
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(10), labels] -= 1
        weight, bias = weight - 0.1 * shares.T @ inputs / 10, bias - 0.1 * shares.mean(axis=0)
    model.train(inputs, labels, 2)
    np.testing.assert_allclose(model.get_weights()["weight"], weight, atol=1e-6)
    np.testing.assert_allclose(model.get_weights()["bias"], bias, atol=1e-6)
    assert not module.training


def test_meters(tmp_path: Path) -> None:
    """RAPL's counters overflow; a Jetson's monitor has voltage and current; files and commands are the user's."""
    from tandem.device.meters import FileMeter, RaplMeter, command_meter, find_meter, ina3221_meter
    from tandem.errors import InputError

    package = tmp_path / "powercap/intel-rapl:0"
    package.mkdir(parents=True)
    (package / "energy_uj").write_text("9000000\n")
    (package / "max_energy_range_uj").write_text("10000000\n")
    rapl = RaplMeter(tmp_path / "powercap")
    (package / "energy_uj").write_text("9500000\n")
    assert rapl.read_j() == pytest.approx(0.5)
    (package / "energy_uj").write_text("250000\n")  # it has overflowed
    assert rapl.read_j() == pytest.approx(1.25)

    monitor = tmp_path / "hwmon/hwmon3"
    monitor.mkdir(parents=True)
    for name, text in {"name": "ina3221", "in1_input": "5000", "curr1_input": "2000"}.items():
        (monitor / name).write_text(text)
    jetson = ina3221_meter(tmp_path / "hwmon")
    first_s, first_j = time.monotonic(), jetson.read_j()
    time.sleep(0.3)
    assert jetson.read_j() - first_j == pytest.approx(10 * (time.monotonic() - first_s), rel=0.1)  # 5 V times 2 A

    counter = tmp_path / "joules"
    counter.write_text("12.5")
    meter = FileMeter(counter)
    counter.write_text("14")
    assert meter.read_j() == 14
    counter.unlink()
    assert meter.read_j() == 14
    assert command_meter("echo 3").read_j() >= 0
    for text in (f"file:{tmp_path / 'nothing'}", "command:echo hello", "command:exit 1", "file:", "rope"):
        with pytest.raises(InputError, match="--energy"):
            find_meter(text)
    assert find_meter("none") is None
