"""Messages between the server and a device: one instruction and one report in each round, as bytes.

Bytes from the network are untrusted: ``from_bytes`` raises ``ProtocolError`` for anything that is not a complete
message with valid numbers, and no other error. Arrays are encoded as safetensors, without pickle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

from tandem.federated.algorithm import Model
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.rng import FIRST_EPISODE_STREAM

NO_ROUND = -1  # a round number that means none
NO_ANSWER = "no answer in time"  # the reason why a device has no report, if nothing else is known
MAX_ROUND = FIRST_EPISODE_STREAM - 1
Weights = dict[str, NDArray[Any]]  # a model: each array by its path in the tree
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Round = Annotated[int, Field(ge=0, le=MAX_ROUND)]
RoundOrNone = Annotated[int, Field(ge=NO_ROUND, le=MAX_ROUND)]
FIELDS = "fields"  # the entry with the numbers of a message, beside the arrays of its model
MODEL = "model."  # prefix of the entries of the model


class ProtocolError(ValueError):
    """A message that is malformed or does not fit; the text is one sentence that says why."""


class Message(BaseModel):
    """Common fields, which identify the run, the device and the round of a message."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]  # also the name of a folder on the device
    device: Number
    round: Round
    weights: Annotated[Weights | None, Field(exclude=True)] = None


class Instruction(Message):
    """The instruction of a device for a round, and the last of its updates that the server has used.

    ``weights``: the global model, for a device that trains or whose last update was acknowledged.
    """

    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # ``FleetSpec.fingerprint``
    train: bool
    power_w: Amount
    frequency_hz: Amount
    trainers: Number  # devices that share the uplink this round
    clock_s: Amount  # simulated time since the start of the run, at the beginning of the round
    duration_s: Amount  # simulated length of the round
    acknowledged: RoundOrNone  # the last round whose update of this device is in the global model


class Report(Message):
    """The report of a device's work in a round, and of its state at the end. ``weights``: its update, if it trained."""

    trained: bool  # whether it has trained, and sends an update
    settled: RoundOrNone  # the last acknowledgement that it has applied
    samples: Number  # number of samples behind the update
    queue: Amount  # Q at the end of the round
    waited_s: Amount
    data: Amount  # D at the end of the round; includes the samples of an update that is not acknowledged yet
    data_age_s: Amount
    model_age_s: Amount
    power_w: Amount  # as set by the hardware
    frequency_hz: Amount
    gain: Amount
    compute_s: Amount
    upload_s: Amount
    inference_s: Amount
    waiting_s: Amount
    latency_s: Amount
    energy_j: Amount
    accuracy: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    arrived: Amount
    served: Amount
    dropped: Amount
    converted: Amount
    discarded: Amount
    work_s: Amount  # wall-clock time to train or to serve


# Fields of a report with the same name in ``FleetState`` and in ``RoundOutcome``.
STATE_FIELDS = ("queue", "waited_s", "data", "data_age_s", "model_age_s")
OUTCOME_FIELDS = (
    *("power_w", "frequency_hz", "gain", "compute_s", "upload_s", "inference_s", "waiting_s", "latency_s", "energy_j"),
    *("arrived", "served", "dropped", "converted", "discarded"),
)

Kind = TypeVar("Kind", bound=Message)


def to_bytes(message: Message) -> bytes:
    """Encode a message."""
    arrays = {MODEL + name: np.ascontiguousarray(array) for name, array in (message.weights or {}).items()}
    arrays[FIELDS] = np.frombuffer(message.model_dump_json().encode(), np.uint8)
    return save(arrays)


def from_bytes(kind: type[Kind], data: bytes) -> Kind:
    """Decode and check a message; raise ``ProtocolError`` if it is not one of this kind."""
    try:
        arrays = load(data)
        fields = arrays.pop(FIELDS).tobytes()
        weights = {name.removeprefix(MODEL): array for name, array in arrays.items()}
        message = kind.model_validate_json(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or kind.__name__.lower()
        raise ProtocolError(f"{field}: {first['msg'].lower()}.") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise ProtocolError(f"the data is not a valid {kind.__name__.lower()} message.") from None
    return message.model_copy(update={"weights": weights or None})


MAX_WEIGHT = 1e6  # a larger weight means that training has diverged, and would spoil the average


def validate_weights(weights: Weights, like: Model) -> Model:
    """Return the model with these weights; they must be finite, with the names, shapes and types of ``like``."""
    expected = flatten_arrays(like)
    if weights.keys() != expected.keys():
        name = sorted(weights.keys() ^ expected.keys())[0]
        raise ProtocolError(f"weights: {name} is {'unknown' if name in weights else 'missing'}; it is another model.")
    for name, array in weights.items():
        like_array = expected[name]
        if array.shape != like_array.shape or array.dtype != like_array.dtype:
            raise ProtocolError(
                f"weights: {name} is {array.dtype}{list(array.shape)} instead of "
                f"{like_array.dtype}{list(like_array.shape)}."
            )
        if not np.isfinite(array).all() or np.abs(array).max(initial=0) > MAX_WEIGHT:
            raise ProtocolError(f"weights: {name} has values that are not finite, or larger than {MAX_WEIGHT:g}.")
    checked: Model = restore_arrays(like, weights, Path("message"))
    return checked
