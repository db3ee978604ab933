"""The messages between a device and what schedules it: one instruction and one report in each round.

A message is a safetensors document: the arrays of a model, and one entry with all other fields as JSON. The simulated
fleet (``tandem.federated.fleet``) and live devices use the same encoding. This module does not import JAX.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load, save

NO_ROUND = -1  # a round number that means none
LAST_ROUND = 2**31 - 1
MAX_WEIGHT = 1e6  # a larger weight means that training has diverged, and would spoil the average
Weights = dict[str, NDArray[Any]]  # a model: each array by its name
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
FIELDS = "fields"  # the entry with the numbers of a message, beside the arrays of its model
MODEL = "model."  # prefix of the entries of the model


class ProtocolError(ValueError):
    """A message that is malformed or does not fit; the text is one sentence that says why."""


class Message(BaseModel):
    """Common fields, which identify the run, the device and the round of a message."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]  # also the name of a folder on the device
    device: Number
    round: Annotated[int, Field(ge=0, le=LAST_ROUND)]
    weights: Annotated[Weights | None, Field(exclude=True)] = None


class LiveInstruction(Message):
    """What a live device shall do in a round, and the last of its updates that the server has used.

    ``weights``: the global model, for a device that trains or whose last update was acknowledged.
    """

    train: bool
    duration_s: Amount  # planned; a device that serves reports after this time, one that trains when it is done
    iterations: Annotated[int, Field(ge=1, le=10_000)] = 1  # local training iterations, U
    power_w: Amount | None = None
    frequency_hz: Amount | None = None
    acknowledged: Annotated[int, Field(ge=NO_ROUND, le=LAST_ROUND)] = NO_ROUND  # last round whose update was aggregated


class LiveReport(Message):
    """What a live device measured since its last report, and its state now. ``weights``: its update, if it trained."""

    trained: bool
    samples: Number  # behind the update
    settled: Annotated[int, Field(ge=NO_ROUND, le=LAST_ROUND)]  # the last acknowledgement that was applied
    elapsed_s: Amount  # since the last report
    compute_s: Amount  # time of training or of inference
    queue: Number  # requests that wait now
    waited_s: Amount  # sum over waiting requests of the time waited
    data: Number  # labelled samples that are in no acknowledged update
    data_age_s: Amount  # their mean age
    model_age_s: Amount  # time since the device adopted a global model
    arrived: Number  # requests accepted, with all following numbers since the last report
    rejected: Number  # requests refused because the queue was full
    served: Number
    expired: Number  # requests whose deadline passed before they were served
    latency_s: Amount  # sum over served requests of the time from acceptance to answer
    labelled: Number  # predictions whose right label became known
    correct: Number  # of those
    frequency_hz: Amount | None = None  # as set; None if the hardware cannot set it
    power_w: Amount | None = None
    energy_j: Amount | None = None  # None if it is neither measured nor estimated
    energy_source: str | None = None  # such as rapl; estimate: by the model of the paper


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


def check_weights(weights: Weights, expected: Weights) -> None:
    """Raise ``ProtocolError`` unless the weights are finite, with the names, shapes and types of ``expected``."""
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
