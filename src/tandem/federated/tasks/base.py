"""Tasks: data, a model, and how the model is pre-trained. A new one is a subclass, and an entry in ``TASKS``."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx

from tandem.federated.data import LabelledImages
from tandem.federated.tasks.cifar10 import find_cifar10
from tandem.federated.tasks.digits import read_digits
from tandem.federated.tasks.models import ConvolutionalNetwork, Perceptron
from tandem.feel.types import RandomKey
from tandem.scenario.plugins import Cifar10TaskConfig, DigitsTaskConfig
from tandem.scenario.plugins import TaskConfig as WrittenTask


@dataclass(frozen=True)
class TaskData:
    """What a model is pre-trained on, and what requests are made of; no image is in both.

    Each is read when it is asked for: that takes seconds, and who only measures needs the requests alone.
    """

    read_pretraining: Callable[[], LabelledImages]
    read_requests: Callable[[], LabelledImages]
    digest: str  # of both

    @classmethod
    def of(cls, pretraining: LabelledImages, requests: LabelledImages) -> TaskData:
        """Images that are in memory already."""
        contents = [array.tobytes() for part in (pretraining, requests) for array in (part.images, part.labels)]
        return cls(lambda: pretraining, lambda: requests, hashlib.sha256(b"".join(contents)).hexdigest())

    @cached_property
    def pretraining(self) -> LabelledImages:
        """For pre-training."""
        return self.read_pretraining()

    @cached_property
    def requests(self) -> LabelledImages:
        """For requests."""
        return self.read_requests()


@dataclass(frozen=True)
class PretrainConfig:
    """How a model is pre-trained: Adam with decoupled weight decay, a rate that warms up and falls like a cosine."""

    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float
    shift_pixels: int  # images are shifted by up to this much
    mirror: bool  # half of them are mirrored
    quick: bool  # seconds: made wherever it is needed, without being asked for


class Task(ABC):
    """A classification task, as a scenario's ``accuracy.task`` describes it."""

    classes: ClassVar[int]
    pretrain_config: ClassVar[PretrainConfig]
    shipped: ClassVar[Path | None] = None  # a model that was made by the recipe and comes with the package

    def __init__(self, written: Any) -> None:
        """As the user wrote it."""
        self.written = written

    @abstractmethod
    def data(self) -> TaskData:
        """Find the data; InputError, then or when they are read, if they are not there or not whole."""

    @abstractmethod
    def model(self, key: RandomKey) -> eqx.Module:
        """A fresh model: a pytree of arrays, called with images in [0, 1], [batch, height, width, channels]."""


class Digits(Task):
    """1,797 handwritten digits; half for pre-training, half for requests."""

    classes = 10
    pretrain_config = PretrainConfig(80, 64, 3e-3, 1e-3, shift_pixels=0, mirror=False, quick=True)

    def data(self) -> TaskData:
        whole = read_digits()
        # They come in the order of their writers: every second one gives both halves the same hands.
        return TaskData.of(*(LabelledImages(whole.images[k::2], whole.labels[k::2]) for k in (0, 1)))

    def model(self, key: RandomKey) -> Perceptron:
        return Perceptron.init(pixels=64, width=32, classes=10, key=key)


class Cifar10(Task):
    """Pre-training on the 50,000 training images, requests from the 10,000 test images."""

    classes = 10
    # With a weight decay of 0.05 the first rounds of devices that train at 0.002 undo the pre-training; with 0.02 they
    # do not, and more images are known before drift (docs/federated.md).
    pretrain_config = PretrainConfig(200, 128, 4e-3, 2e-2, shift_pixels=4, mirror=True, quick=False)
    shipped = Path(__file__).with_name("pretrained") / "cifar10.safetensors"  # hours on a CPU, and 200 KB

    def data(self) -> TaskData:
        files = find_cifar10(self.written.path)
        return TaskData(files.read_train, files.read_test, files.digest())

    def model(self, key: RandomKey) -> ConvolutionalNetwork:
        return ConvolutionalNetwork.init(key)


TASKS: dict[type[WrittenTask], type[Task]] = {DigitsTaskConfig: Digits, Cifar10TaskConfig: Cifar10}


def build_task(written: WrittenTask) -> Task:
    """The task a scenario asks for."""
    return TASKS[type(written)](written)
