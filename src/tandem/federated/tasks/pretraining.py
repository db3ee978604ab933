"""The model that every device starts with: trained once, kept in the user's cache, resumed where it was stopped."""

from __future__ import annotations

import dataclasses
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
from tandem.io.tree_io import flatten_arrays, read_arrays, restore_arrays, write_arrays
from tandem.rng import SeedStream, stream_key

STEPS_AT_ONCE = 25
SAVED_EVERY_S = 20.0
ASKED_AT_ONCE = 500  # images, when the accuracy is measured


@dataclass(frozen=True)
class Progressed:
    """How far pre-training is."""

    step: int
    steps: int
    loss: float


@dataclass(frozen=True)
class Pretrained:
    """A model and how good it is on images it has not seen, as they are before any drift."""

    model: Model
    accuracy: float
    path: Path


class _State(eqx.Module):
    model: Model
    optimiser: Any


Listener = Callable[[Progressed], None]


def fingerprint(task: Task, data: TaskData, recipe: PretrainConfig, seed: int) -> str:
    """What a pre-trained model depends on, in a few letters."""
    shapes = [leaf.shape for leaf in jax.tree.leaves(eqx.filter_eval_shape(task.model, jax.random.key(0)))]
    said = f"{type(task).__name__} {dataclasses.astuple(recipe)} {shapes} {seed} {data.digest}"
    return hashlib.sha256(said.encode()).hexdigest()[:12]


def cache_path(task: Task, data: TaskData, recipe: PretrainConfig, seed: int) -> Path:
    """Where the model is kept if nobody says otherwise."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "tandem" / "pretrained" / f"{task.config.kind}-{fingerprint(task, data, recipe, seed)}.safetensors"


def load_pretrained(task: Task, data: TaskData, seed: int = 0) -> Pretrained:
    """The model of a task: the user's, the kept one, the shipped one, or, if that takes seconds only, one made now."""
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
            f"the task {task.config.kind}: has no pre-trained model yet; make one with "
            f"'tandem pretrain {task.config.kind}{data_option}', or name one as accuracy.task.pretrained_path."
        )
    return pretrain(task, data, path, task.pretrain_config, seed)


def read_pretrained(task: Task, path: Path) -> Pretrained:
    """A model from its file."""
    arrays, note = read_arrays(path)
    if note.get("task") != task.config.kind or "accuracy" not in note:
        raise InputError(f"{path}: is not a pre-trained model for {task.config.kind}; make one with 'tandem pretrain'.")
    blank = eqx.filter_eval_shape(task.model, jax.random.key(0))
    return Pretrained(restore_arrays(blank, arrays, path), float(note["accuracy"]), path)


def pretrain(
    task: Task,
    data: TaskData,
    path: Path,
    recipe: PretrainConfig,
    seed: int = 0,
    told: Listener = lambda progress: None,
) -> Pretrained:
    """Train and keep; if it was stopped before, go on bit for bit from what was saved on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    halfway = path.with_name(f"{path.stem}.unfinished.safetensors")
    known = {"task": task.config.kind, "fingerprint": fingerprint(task, data, recipe, seed)}
    key = jax.random.key(seed)
    images, labels = jnp.asarray(data.pretraining.images), jnp.asarray(data.pretraining.labels)
    batch = min(recipe.batch, len(labels))
    at_once = min(STEPS_AT_ONCE, len(labels) // batch)
    per_epoch = len(labels) // batch // at_once * at_once
    steps = recipe.epochs * per_epoch
    optimiser = _optimiser(recipe, steps)
    state, step = _start(task, optimiser, key), 0
    if halfway.exists():
        state, step = _resumed(halfway, known, state, step)
    saved_at = time.monotonic()
    while step < steps:
        epoch, within = divmod(step, per_epoch)
        epoch_key = stream_key(seed, SeedStream.PRETRAINING_EPOCH, epoch)
        state, loss = _steps(state, images, labels, epoch_key, jnp.asarray(within), recipe, optimiser, batch, at_once)
        step += at_once
        told(Progressed(step, steps, float(loss)))
        if time.monotonic() - saved_at > SAVED_EVERY_S and step < steps:
            write_arrays(halfway, flatten_arrays(state), {**known, "step": step})
            saved_at = time.monotonic()
    accuracy = accuracy_on(state.model, data.requests)
    write_arrays(
        path, flatten_arrays(state.model), {**known, "accuracy": accuracy, "seed": seed, "epochs": recipe.epochs}
    )
    halfway.unlink(missing_ok=True)
    return Pretrained(state.model, accuracy, path)


def accuracy_on(model: Model, data: LabelledImages) -> float:
    """The share of images that the model classifies rightly, as they are in the data."""
    right = 0
    for begin in range(0, len(data), ASKED_AT_ONCE):
        part = slice(begin, begin + ASKED_AT_ONCE)
        right += int(np.sum(np.asarray(_answers(model, jnp.asarray(data.images[part]))) == data.labels[part]))
    return right / len(data)


@eqx.filter_jit
def _answers(model: Model, images: Array) -> Array:
    return jnp.argmax(model(images.astype(jnp.float32) / 255), axis=-1)


def _start(task: Task, optimiser: optax.GradientTransformation, key: RandomKey) -> _State:
    model = task.model(key)
    return _State(model, optimiser.init(model))


def _resumed(halfway: Path, known: dict[str, Any], state: _State, step: int) -> tuple[_State, int]:
    arrays, note = read_arrays(halfway)
    if {name: note.get(name) for name in known} != json.loads(json.dumps(known)):
        return state, step  # of other data or another recipe: start anew
    return restore_arrays(state, arrays, halfway), int(note["step"])


def _optimiser(recipe: PretrainConfig, steps: int) -> optax.GradientTransformation:
    rate = optax.warmup_cosine_decay_schedule(0.0, recipe.learning_rate, max(1, steps // 20), steps)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate, weight_decay=recipe.weight_decay))


@eqx.filter_jit
def _steps(
    state: _State,
    images: Array,
    labels: Array,
    epoch_key: RandomKey,
    within: Array,
    recipe: PretrainConfig,
    optimiser: optax.GradientTransformation,
    batch: int,
    steps: int,
) -> tuple[_State, Scalar]:
    """Some steps of an epoch, from step ``within`` of it on; every image comes at most once in an epoch."""
    order = jax.random.permutation(epoch_key, labels.shape[0])

    def one(now: _State, number: Array) -> tuple[_State, Scalar]:
        chosen = jax.lax.dynamic_slice_in_dim(order, number * batch, batch)
        seen = augment(images[chosen].astype(jnp.float32) / 255, recipe, jax.random.fold_in(epoch_key, number))

        def loss(model: Model) -> Scalar:
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(seen), labels[chosen]))

        value, slope = jax.value_and_grad(loss)(now.model)
        change, optimiser_state = optimiser.update(slope, now.optimiser, now.model)
        return _State(optax.apply_updates(now.model, change), optimiser_state), value

    state, losses = jax.lax.scan(one, state, within + jnp.arange(steps))
    return state, jnp.mean(losses)


def augment(images: Array, recipe: PretrainConfig, key: RandomKey) -> Array:
    """Images shifted and mirrored at random, each in its own way."""
    far = recipe.shift_pixels
    shift_key, mirror_key = jax.random.split(key)
    if far:
        padded = jnp.pad(images, ((0, 0), (far, far), (far, far), (0, 0)))
        corners = jax.random.randint(shift_key, (images.shape[0], 2), 0, 2 * far + 1)
        size = images.shape[1:]
        images = jax.vmap(lambda one, at: jax.lax.dynamic_slice(one, (at[0], at[1], 0), size))(padded, corners)
    if recipe.mirror:
        turned = jax.random.bernoulli(mirror_key, 0.5, (images.shape[0], 1, 1, 1))
        images = jnp.where(turned, images[:, :, ::-1], images)
    return images
