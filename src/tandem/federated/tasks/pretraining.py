"""Pre-training of the model that every device starts with: cached, and resumed where it was interrupted."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from tandem.errors import InputError
from tandem.federated.algorithm import Model
from tandem.federated.data import LabelledImages
from tandem.federated.tasks.base import PretrainConfig, Task, TaskData
from tandem.feel.types import Array, RandomKey, Scalar
from tandem.io.array_file import read_arrays, write_arrays
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.rng import SeedStream, stream_key

STEPS_PER_CALL = 25
SAVE_EVERY_S = 20.0
TEST_BATCH = 500  # images


@dataclass(frozen=True)
class PretrainProgress:
    """Progress of pre-training."""

    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model and its accuracy on the images of requests, before any drift."""

    model: Model
    accuracy: float
    path: Path


class _State(eqx.Module):
    model: Model
    optimiser: Any


OnProgress = Callable[[PretrainProgress], None]


def fingerprint(task: Task, data: TaskData, config: PretrainConfig, seed: int) -> str:
    """Hash everything that a pre-trained model depends on."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(eqx.filter_eval_shape(task.model, jax.random.key(0)))]
    text = f"{type(task).__name__} {dataclasses.astuple(config)} {shapes} {seed} {data.digest}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def cache_path(task: Task, data: TaskData, config: PretrainConfig, seed: int) -> Path:
    """Return the path of the model in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tandem" / "pretrained" / f"{task.config.kind}-{fingerprint(task, data, config, seed)}.safetensors"


def load_pretrained(task: Task, data: TaskData, seed: int = 0) -> Pretrained:
    """Load a task's model: the user's, the cached or the shipped one; if there is none, train it if that is quick."""
    if task.config.pretrained_path is not None:
        return read_pretrained(task, task.config.pretrained_path)
    path = cache_path(task, data, task.pretrain_config, seed)
    if path.exists():
        return read_pretrained(task, path)
    if task.shipped is not None:
        return read_pretrained(task, task.shipped)
    if not task.pretrain_config.quick:
        data_option = f" --data {task.config.path}" if hasattr(task.config, "path") else ""
        raise InputError(
            f"the task {task.config.kind}: has no pre-trained model; train one with "
            f"'tandem pretrain {task.config.kind}{data_option}', or set accuracy.task.pretrained_path."
        )
    return pretrain(task, data, path, task.pretrain_config, seed)


def read_pretrained(task: Task, path: Path) -> Pretrained:
    """Read a model from its file."""
    arrays, note = read_arrays(path)
    if note.get("task") != task.config.kind or "accuracy" not in note:
        raise InputError(
            f"{path}: is not a pre-trained model for {task.config.kind}; train one with 'tandem pretrain'."
        )
    blank = eqx.filter_eval_shape(task.model, jax.random.key(0))
    return Pretrained(restore_arrays(blank, arrays, path), float(note["accuracy"]), path)


def pretrain(
    task: Task,
    data: TaskData,
    path: Path,
    config: PretrainConfig,
    seed: int = 0,
    on_progress: OnProgress = lambda progress: None,
) -> Pretrained:
    """Train a model and write it; an interrupted training continues from its last checkpoint, identical to the bit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = path.with_name(f"{path.stem}.unfinished.safetensors")
    identity = {"task": task.config.kind, "fingerprint": fingerprint(task, data, config, seed)}
    key = jax.random.key(seed)
    images, labels = jnp.asarray(data.pretraining.images), jnp.asarray(data.pretraining.labels)
    batch = min(config.batch, len(labels))
    per_call = min(STEPS_PER_CALL, len(labels) // batch)
    per_epoch = len(labels) // batch // per_call * per_call
    steps = config.epochs * per_epoch
    optimiser = _make_optimiser(config, steps)
    state, step = _init(task, optimiser, key), 0
    if checkpoint.exists():
        state, step = _resume(checkpoint, identity, state, step)
    saved_at = time.monotonic()
    while step < steps:
        epoch, within = divmod(step, per_epoch)
        epoch_key = stream_key(seed, SeedStream.PRETRAINING_EPOCH, epoch)
        state, loss = _train_steps(
            state, images, labels, epoch_key, jnp.asarray(within), config, optimiser, batch, per_call
        )
        step += per_call
        on_progress(PretrainProgress(step, steps, float(loss)))
        if time.monotonic() - saved_at > SAVE_EVERY_S and step < steps:
            write_arrays(checkpoint, flatten_arrays(state), {**identity, "step": step})
            saved_at = time.monotonic()
    accuracy = accuracy_on(state.model, data.requests)
    write_arrays(
        path, flatten_arrays(state.model), {**identity, "accuracy": accuracy, "seed": seed, "epochs": config.epochs}
    )
    checkpoint.unlink(missing_ok=True)
    return Pretrained(state.model, accuracy, path)


def accuracy_on(model: Model, data: LabelledImages) -> float:
    """Return the share of images that the model classifies correctly, without drift."""
    correct = 0
    for begin in range(0, len(data), TEST_BATCH):
        part = slice(begin, begin + TEST_BATCH)
        correct += int(np.sum(np.asarray(_predict(model, jnp.asarray(data.images[part]))) == data.labels[part]))
    return correct / len(data)


@eqx.filter_jit
def _predict(model: Model, images: Array) -> Array:
    return jnp.argmax(model(images.astype(jnp.float32) / 255), axis=-1)


def _init(task: Task, optimiser: optax.GradientTransformation, key: RandomKey) -> _State:
    model = task.model(key)
    return _State(model, optimiser.init(model))


def _resume(checkpoint: Path, identity: dict[str, Any], state: _State, step: int) -> tuple[_State, int]:
    arrays, note = read_arrays(checkpoint)
    if {name: note.get(name) for name in identity} != json.loads(json.dumps(identity)):
        return state, step  # the checkpoint is of other data or another configuration: start from the beginning
    return restore_arrays(state, arrays, checkpoint), int(note["step"])


@functools.lru_cache(maxsize=8)  # the optimiser is a static argument: another object would be compiled again
def _make_optimiser(config: PretrainConfig, steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0.0, config.learning_rate, max(1, steps // 20), steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=config.weight_decay))


@eqx.filter_jit
def _train_steps(
    state: _State,
    images: Array,
    labels: Array,
    epoch_key: RandomKey,
    within: Array,
    config: PretrainConfig,
    optimiser: optax.GradientTransformation,
    batch: int,
    steps: int,
) -> tuple[_State, Scalar]:
    """Run some steps of an epoch, from step ``within`` on; every image is used at most once in an epoch."""
    order = jax.random.permutation(epoch_key, labels.shape[0])

    def one_step(now: _State, number: Array) -> tuple[_State, Scalar]:
        chosen = jax.lax.dynamic_slice_in_dim(order, number * batch, batch)
        inputs = augment(images[chosen].astype(jnp.float32) / 255, config, jax.random.fold_in(epoch_key, number))

        def loss(model: Model) -> Scalar:
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(inputs), labels[chosen]))

        value, slope = jax.value_and_grad(loss)(now.model)
        change, optimiser_state = optimiser.update(slope, now.optimiser, now.model)
        return _State(optax.apply_updates(now.model, change), optimiser_state), value

    state, losses = jax.lax.scan(one_step, state, within + jnp.arange(steps))
    return state, jnp.mean(losses)


def augment(images: Array, config: PretrainConfig, key: RandomKey) -> Array:
    """Shift and mirror each image at random."""
    far = config.shift_pixels
    shift_key, mirror_key = jax.random.split(key)
    if far:
        padded = jnp.pad(images, ((0, 0), (far, far), (far, far), (0, 0)))
        corners = jax.random.randint(shift_key, (images.shape[0], 2), 0, 2 * far + 1)
        size = images.shape[1:]
        images = jax.vmap(lambda one, at: jax.lax.dynamic_slice(one, (at[0], at[1], 0), size))(padded, corners)
    if config.mirror:
        mirrored = jax.random.bernoulli(mirror_key, 0.5, (images.shape[0], 1, 1, 1))
        images = jnp.where(mirrored, images[:, :, ::-1], images)
    return images
