"""A live device: one thread serves requests in batches, or trains, as the scheduler instructs.

A device that trains does not serve; requests that arrive meanwhile wait. Before the first instruction, after a training
and while no scheduler is there, the device serves. The samples behind an update are kept until a later instruction
acknowledges the update, so that a lost message neither loses a sample nor causes one to be aggregated twice.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tandem.device.hardware import Hardware, HardwareSetting
from tandem.device.messages import (
    LiveInstruction,
    LiveReport,
    ProtocolError,
    Weights,
    check_weights,
    from_bytes,
    to_bytes,
)
from tandem.device.meters import EnergyMeter, EstimatedEnergy
from tandem.device.model import ClientModel, Inputs, Labels, predict_scores
from tandem.device.store import Batch, DeviceStore, Progress, QueueFullError, StoredRequest, StoreFullError
from tandem.errors import one_line

POLL_S = 0.25  # how often deadlines are checked while nothing happens
PRUNE_EVERY_S = 60.0
RETRY_S = 1.0  # after a full disk
OnAnswered = Callable[[Sequence[str]], None]  # receives the ids of requests that have an answer
logger = logging.getLogger(__name__)


@dataclass
class Totals:
    """Counts of inputs since the start of the process."""

    accepted: int = 0
    rejected: int = 0  # the queue was full
    served: int = 0
    expired: int = 0
    failed: int = 0  # the model raised an exception
    labels: int = 0
    trained: int = 0  # samples in updates that were sent


@dataclass(frozen=True)
class AgentConfig:
    """The options of a device."""

    device: int = 0  # its number in the fleet
    max_batch: int = 64  # inputs that are served together
    feedback_window_s: float = 24 * 3600.0  # how long an answered request is kept for its label


@dataclass
class _Training:
    """A training that the worker thread executes."""

    weights: Weights
    inputs: Inputs
    labels: Labels
    iterations: int
    done: threading.Event = field(default_factory=threading.Event)
    update: Weights | None = None
    error: str = ""


class DeviceAgent:
    """Serves and trains one model. ``submit``, ``label`` and ``handle`` may be called from any thread."""

    def __init__(
        self,
        model: ClientModel,
        store: DeviceStore,
        config: AgentConfig | None = None,
        *,
        hardware: Hardware | None = None,
        meter: EnergyMeter | None = None,
        on_answered: OnAnswered = lambda ids: None,
    ) -> None:
        self.model = model
        self.store = store
        self.config = config or AgentConfig()
        self.totals = Totals()
        self.on_answered = on_answered
        self._hardware = hardware
        self._meter = meter
        self._setting: HardwareSetting | None = None
        self._training: _Training | None = None
        self._model_lock = threading.Lock()  # held while the model predicts, trains or is replaced
        self._handle_lock = threading.Lock()
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._busy_s = 0.0
        self._reported_busy_s = 0.0
        self._reported_rejected = 0
        self._reported_j = 0.0 if meter is None else meter.read_j()
        self._prune_at_s = 0.0
        progress = store.read_progress()
        if not progress.adopted_at:
            now = time.time()
            progress = dataclasses.replace(progress, adopted_at=now, reported_at=now)
            store.write_progress(progress)
        self._progress = progress
        weights = store.read_weights()
        if weights is not None:
            check_weights(weights, model.get_weights())
            model.set_weights(weights)
        self._thread = threading.Thread(target=self._run, name="tandem-device", daemon=True)

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def stop(self) -> None:
        """Finish the batch or the training in progress, then stop."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def mode(self) -> str:
        """What the device does now: ``serve`` or ``train``."""
        return "serve" if self._training is None else "train"

    @property
    def model_round(self) -> int:
        """The round of the adopted global model."""
        return self._progress.model_round

    # Requests

    def submit(self, request_id: str, digest: bytes, inputs: Inputs, deadline_s: float | None) -> StoredRequest:
        """Accept a request; it is on disk when this returns. Raises the exceptions of ``DeviceStore.add_request``."""
        try:
            accepted, is_new = self.store.add_request(request_id, digest, inputs, deadline_s)
        except QueueFullError:
            self.totals.rejected += len(inputs)
            raise
        if is_new:
            self.totals.accepted += len(inputs)
            self._wake.set()
        return accepted

    def label(self, request_id: str, labels: Labels) -> None:
        """Record the right labels of a request; they are on disk when this returns."""
        self.store.add_labels(request_id, labels)
        self.totals.labels += len(labels)

    # The worker thread

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                training = self._training
                if training is not None:
                    self._train(training)
                    continue
                self._expire()
                if self._serve():
                    continue
            except StoreFullError as error:
                logger.error("the state cannot be written (%s); it is tried again", error)
                self._stop.wait(RETRY_S)
                continue
            except Exception:  # the device must go on serving
                logger.exception("an error, after which the device goes on")
                self._stop.wait(RETRY_S)
                continue
            self._wake.wait(POLL_S)
            self._wake.clear()
        if self._training is not None:
            self._training.error = "the device stops"
            self._training.done.set()

    def _expire(self) -> None:
        expired = self.store.expire_requests()
        if expired:
            self.totals.expired += len(expired)
            self.on_answered(expired)
        if time.monotonic() >= self._prune_at_s:
            self._prune_at_s = time.monotonic() + PRUNE_EVERY_S
            self.store.prune(self.config.feedback_window_s)

    def _serve(self) -> bool:
        """Serve one batch of the requests that wait. Returns False if there are none."""
        batch = self.store.take_batch(self.config.max_batch)
        if batch is None:
            return False
        scores = self._predict(batch)
        if scores is None and len(batch.numbers) > 1:  # one request must not affect the others
            for single in _split(batch):
                self._finish(single, self._predict(single))
        else:
            self._finish(batch, scores)
        return True

    def _predict(self, batch: Batch) -> NDArray[np.float32] | None:
        """Return the scores of a batch; None if the model raises an exception."""
        with self._model_lock:
            began_s = time.perf_counter()
            try:
                scores = predict_scores(self.model, batch.inputs)
                if not np.isfinite(scores).all():
                    raise ValueError("predict returned scores that are not finite")
                return scores
            except Exception:
                logger.exception("the model cannot answer the requests %s", ", ".join(batch.ids))
                return None
            finally:
                self._add_busy(time.perf_counter() - began_s)

    def _finish(self, batch: Batch, scores: NDArray[np.float32] | None) -> None:
        """Store the answers, or that there are none."""
        if scores is None:
            self.store.fail_batch(batch)
            self.totals.failed += sum(batch.sizes)
        else:
            self.store.finish_batch(batch, scores, self._progress.model_round)
            self.totals.served += sum(batch.sizes)
        self.on_answered(batch.ids)

    def _train(self, training: _Training) -> None:
        with self._model_lock:
            before = self.model.get_weights()
            began_s = time.perf_counter()
            try:
                self.model.set_weights(training.weights)
                self.model.train(training.inputs, training.labels, training.iterations)
                update = self.model.get_weights()
                check_weights(update, before)
                training.update = update
            except Exception as error:
                logger.exception("training failed")
                training.error = one_line(f"{type(error).__name__}: {error}")[:200]
            finally:
                self.model.set_weights(before)  # the update counts when the server has aggregated it
                self._add_busy(time.perf_counter() - began_s)
        self._training = None
        training.done.set()

    def _add_busy(self, busy_s: float) -> None:
        self._busy_s += busy_s
        if isinstance(self._meter, EstimatedEnergy):
            self._meter.add_busy(busy_s)

    # Instructions

    def handle(self, data: bytes) -> bytes:
        """Execute an instruction and return the report, which is on disk before.

        A repeated instruction gives the same report again. Raises ProtocolError for one that does not fit.
        """
        instruction = from_bytes(LiveInstruction, data)
        with self._handle_lock:
            return self._handle(instruction)

    def _handle(self, instruction: LiveInstruction) -> bytes:
        if instruction.device != self.config.device:
            raise ProtocolError(
                f"device: the instruction is for device {instruction.device}, this is {self.config.device}."
            )
        if instruction.weights is not None:
            check_weights(instruction.weights, self.model.get_weights())
        progress = self._progress
        if instruction.run == progress.run:
            stored = self.store.read_report()
            if instruction.round == progress.round and stored is not None:
                return stored
            if instruction.round <= progress.round:
                raise ProtocolError(f"round: {instruction.round} is not after {progress.round}, which is already done.")
        else:  # samples stay; an update of the other run is not acknowledged any more
            progress = Progress(run=instruction.run, reported_at=progress.reported_at, adopted_at=progress.adopted_at)
        try:
            self._acknowledge(progress, instruction)
            self._apply_setting(instruction)
            if instruction.train:
                update, samples, last_sample = self._request_training(instruction)
            else:
                self._stop.wait(instruction.duration_s)
                update, samples, last_sample = None, 0, None
            return self._report(instruction, update, samples, last_sample)
        except StoreFullError as error:
            raise OSError(f"the state cannot be written ({error})") from None

    def _acknowledge(self, progress: Progress, instruction: LiveInstruction) -> None:
        """Adopt the global model if it contains the last update; otherwise keep the samples of that update."""
        weights = instruction.weights
        if instruction.acknowledged > progress.settled and weights is not None:
            contained = progress.last_sample if instruction.acknowledged == progress.round else None
            progress = dataclasses.replace(
                progress,
                settled=instruction.acknowledged,
                last_sample=None,
                adopted_at=time.time(),
                model_round=instruction.acknowledged,
            )
            with self._model_lock:
                self.store.adopt(weights, progress, contained)
                self.model.set_weights(weights)
        else:
            # Without weights no model was adopted. The report has a lower ``settled``, and the server sends the model.
            progress = dataclasses.replace(progress, last_sample=None)
        self._progress = progress

    def _apply_setting(self, instruction: LiveInstruction) -> None:
        self._setting = None
        if self._hardware is None or instruction.frequency_hz is None:
            return
        self._setting = self._hardware.apply(HardwareSetting(instruction.frequency_hz, instruction.power_w or 0.0))
        if isinstance(self._meter, EstimatedEnergy):
            self._meter.frequency_hz = self._setting.frequency_hz

    def _request_training(self, instruction: LiveInstruction) -> tuple[Weights | None, int, int | None]:
        inputs, labels, last = self.store.read_samples()
        if len(labels) == 0:
            return None, 0, None
        weights = instruction.weights if instruction.weights is not None else self.model.get_weights()
        training = _Training(weights, inputs, labels, instruction.iterations)
        self._training = training
        self._wake.set()
        training.done.wait()
        if training.update is None:
            raise ProtocolError(f"train: the model could not be trained ({training.error}).")
        self.totals.trained += len(labels)
        return training.update, len(labels), last

    def _report(
        self, instruction: LiveInstruction, update: Weights | None, samples: int, last_sample: int | None
    ) -> bytes:
        progress, now = self._progress, time.time()
        measured = self.store.measure(progress.reported_at)
        energy_j = None if self._meter is None else self._meter.read_j()
        rejected, busy_s = self.totals.rejected, self._busy_s
        setting = self._setting
        report = to_bytes(
            LiveReport(
                run=instruction.run,
                device=instruction.device,
                round=instruction.round,
                weights=update,
                trained=update is not None,
                samples=samples,
                settled=progress.settled,
                elapsed_s=max(now - progress.reported_at, 0.0),
                compute_s=busy_s - self._reported_busy_s,
                model_age_s=max(now - progress.adopted_at, 0.0),
                rejected=rejected - self._reported_rejected,
                frequency_hz=None if setting is None else setting.frequency_hz,
                energy_j=None if energy_j is None else max(energy_j - self._reported_j, 0.0),
                energy_source=None if self._meter is None else self._meter.source,
                **vars(measured),
            )
        )
        after = dataclasses.replace(progress, round=instruction.round, last_sample=last_sample, reported_at=now)
        self.store.write_progress(after, report)
        self._progress = after
        self._reported_rejected, self._reported_busy_s = rejected, busy_s
        self._reported_j = energy_j or 0.0
        return report


def _split(batch: Batch) -> list[Batch]:
    """Return each request of a batch as a batch of its own."""
    starts = np.cumsum([0, *batch.sizes])
    return [
        Batch([number], [request_id], [size], batch.inputs[start : start + size])
        for number, request_id, size, start in zip(batch.numbers, batch.ids, batch.sizes, starts[:-1], strict=True)
    ]
