"""The model that devices start with: good enough, made once, resumed to the bit."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tandem.errors import InputError
from tandem.federated.tasks import pretraining
from tandem.federated.tasks.base import Cifar10, Digits, PretrainConfig, Task
from tandem.federated.tasks.models import weight_count
from tandem.federated.tasks.pretraining import PretrainProgress, augment, cache_path, load_pretrained, pretrain
from tandem.io.array_file import write_arrays
from tandem.io.tree_io import flatten_arrays
from tandem.scenario.plugins import Cifar10TaskConfig, DigitsTaskConfig

DIGITS = Digits(DigitsTaskConfig())
SHORT = dataclasses.replace(Digits.pretrain_config, epochs=4)


def test_digits_are_pretrained_in_seconds_and_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = DIGITS.data()
    assert (len(data.pretraining), len(data.requests)) == (899, 898)
    begun = time.monotonic()
    made = load_pretrained(DIGITS, data)
    assert time.monotonic() - begun < 30
    assert made.accuracy > 0.94
    assert made.path == cache_path(DIGITS, data, DIGITS.pretrain_config, 0)
    again = load_pretrained(DIGITS, data)
    assert again.accuracy == made.accuracy
    assert jax.tree.all(jax.tree.map(np.array_equal, again.model, made.model))


def test_a_resumed_pretraining_is_identical_to_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = DIGITS.data()
    whole = pretrain(DIGITS, data, tmp_path / "whole.safetensors", SHORT)
    monkeypatch.setattr(pretraining, "SAVE_EVERY_S", 0.0)

    def stop(progress: PretrainProgress) -> None:
        if progress.step > progress.steps // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(DIGITS, data, tmp_path / "model.safetensors", SHORT, on_progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"whole.safetensors", "model.unfinished.safetensors"}
    steps: list[int] = []
    resumed = pretrain(
        DIGITS, data, tmp_path / "model.safetensors", SHORT, on_progress=lambda now: steps.append(now.step)
    )
    assert steps[0] > 14  # it did not start from the beginning
    assert jax.tree.all(jax.tree.map(np.array_equal, resumed.model, whole.model))
    assert not (tmp_path / "model.unfinished.safetensors").exists()


def test_the_checkpoint_of_another_seed_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = DIGITS.data()
    monkeypatch.setattr(pretraining, "SAVE_EVERY_S", 0.0)

    def stop(progress: PretrainProgress) -> None:
        if progress.step > progress.steps // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain(DIGITS, data, tmp_path / "model.safetensors", SHORT, seed=0, on_progress=stop)
    found = pretrain(DIGITS, data, tmp_path / "model.safetensors", SHORT, seed=1)
    other = pretrain(DIGITS, data, tmp_path / "other.safetensors", SHORT, seed=1)
    assert jax.tree.all(jax.tree.map(np.array_equal, found.model, other.model))


def test_a_cached_model_takes_precedence_over_the_shipped_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task, data = Cifar10(Cifar10TaskConfig(path=tmp_path)), DIGITS.data()
    shipped = load_pretrained(task, data)
    assert shipped.path == Cifar10.shipped
    assert weight_count(shipped.model) == 50_154
    assert shipped.accuracy >= 0.8
    own = cache_path(task, data, task.pretrain_config, seed=0)
    own.parent.mkdir(parents=True, exist_ok=True)
    fresh = task.model(jax.random.key(1))
    write_arrays(own, flatten_arrays(fresh), {"task": "cifar10", "accuracy": 0.1})
    found = load_pretrained(task, data)
    assert (found.path, found.accuracy) == (own, 0.1)
    assert jax.tree.all(jax.tree.map(np.array_equal, found.model, fresh))


def test_a_missing_model_that_takes_long_is_not_trained_without_asking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Cifar10(Cifar10TaskConfig(path=tmp_path))
    monkeypatch.setattr(Cifar10, "shipped", None)
    with pytest.raises(InputError, match=r"the task cifar10.*'tandem pretrain cifar10 --data "):
        load_pretrained(task, DIGITS.data())


def test_a_model_of_another_task_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "digits.safetensors"
    pretrain(DIGITS, DIGITS.data(), path, SHORT)
    task = Cifar10(Cifar10TaskConfig(path=tmp_path, pretrained_path=path))
    with pytest.raises(InputError, match=r"digits\.safetensors.*cifar10"):
        load_pretrained(task, DIGITS.data())
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="cut short or damaged"):
        load_pretrained(Digits(DigitsTaskConfig(pretrained_path=path)), DIGITS.data())


def test_augmentation_shifts_and_mirrors() -> None:
    images = jnp.zeros((64, 9, 9, 1)).at[:, 4, 4].set(1.0)
    recipe = PretrainConfig(1, 1, 1e-3, 0.0, shift_pixels=2, mirror=True, quick=True)
    found = np.asarray(augment(images, recipe, jax.random.key(0)))
    places: Any = {tuple(np.argwhere(image[..., 0])[0]) for image in found}
    assert all(2 <= row <= 6 and 2 <= column <= 6 for row, column in places)
    assert len(places) > 10
    still: PretrainConfig = dataclasses.replace(recipe, shift_pixels=0, mirror=False)
    np.testing.assert_array_equal(augment(images, still, jax.random.key(0)), images)


def test_a_task_needs_two_functions() -> None:
    assert {name for name in vars(Task) if not name.startswith("_")} == {"data", "model", "shipped"}
