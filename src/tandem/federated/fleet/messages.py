"""What a server and a device say to each other in a round: one instruction, one report, each a string of bytes.

Bytes come from elsewhere: what does not read as a whole message of sane numbers raises ``GarbledError``, and nothing
else. No pickle is involved; arrays travel as safetensors.
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

Weights = dict[str, NDArray[Any]]  # a model, each array by its place in it
Amount = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Number = Annotated[int, Field(ge=0, le=2**31 - 1)]
RoundOrNone = Annotated[int, Field(ge=-1, le=2**31 - 1)]  # -1 is none
FIELDS = "fields"  # where the numbers of a message stand, beside the arrays of its model
MODEL = "model."


class ProtocolError(ValueError):
    """What has arrived is no message of ours; says why in one sentence."""


class Message(BaseModel):
    """Which run, which device, which round: so that nothing is taken for what it is not."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", arbitrary_types_allowed=True)

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")]  # a device names a folder by it
    device: Number
    round: Number
    weights: Annotated[Weights | None, Field(exclude=True)] = None


class Instruction(Message):
    """What the server wants of a device, and what became of the device's last update."""

    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]  # ``Problem.fingerprint``
    train: bool
    power_w: Amount
    frequency_hz: Amount
    trainers: Number  # devices that share the uplink this round
    clock_s: Amount  # time since the start of the run, when the round begins
    duration_s: Amount  # how long the round lasts, as far as time is simulated
    acknowledged: RoundOrNone  # the last round whose update of this device went into the server's model
    # With weights: the server's model, to train from, or to serve with after an acknowledged update.


class Report(Message):
    """What a device did in a round, and how it stands at its end. With weights if it has trained: its update."""

    trained: bool  # it trained, and there is an update
    settled: RoundOrNone  # the last acknowledgement it has acted on
    samples: Number  # whole ones behind the update
    queue: Amount  # Q at the end of the round
    waited_s: Amount
    data: Amount  # D at the end of the round; what was trained on stays in it until it is acknowledged
    data_age_s: Amount
    model_age_s: Amount
    power_w: Amount  # as it was set
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
    work_s: Amount  # by the wall clock, to train or to serve


# Fields of a report that the simulator has under the same names: of a fleet's state, and of a round's outcome.
STATE_FIELDS = ("queue", "waited_s", "data", "data_age_s", "model_age_s")
OUTCOME_FIELDS = (
    *("power_w", "frequency_hz", "gain", "compute_s", "upload_s", "inference_s", "waiting_s", "latency_s", "energy_j"),
    *("arrived", "served", "dropped", "converted", "discarded"),
)

Kind = TypeVar("Kind", bound=Message)


def to_bytes(message: Message) -> bytes:
    """The message as it travels."""
    arrays = {MODEL + name: np.ascontiguousarray(array) for name, array in (message.weights or {}).items()}
    arrays[FIELDS] = np.frombuffer(message.model_dump_json().encode(), np.uint8)
    return save(arrays)


def from_bytes(kind: type[Kind], data: bytes) -> Kind:
    """The message that these bytes are, checked; ``GarbledError`` if they are none."""
    try:
        arrays = load(data)
        fields = arrays.pop(FIELDS).tobytes()
        weights = {name.removeprefix(MODEL): array for name, array in arrays.items()}
        message = kind.model_validate_json(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or kind.__name__.lower()
        raise ProtocolError(f"{where}: {first['msg'].lower()}.") from None
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        raise ProtocolError(f"it is no {kind.__name__.lower()} of a fleet.") from None
    return message.model_copy(update={"weights": weights or None})


LARGEST = 1e6  # of a weight: beyond it a model has diverged, and its average with others would be no model either


def validate_weights(weights: Weights, like: Model) -> Model:
    """The model of these weights, if they are finite and have the places, shapes and types of ``like``."""
    needed = flatten_arrays(like)
    if weights.keys() != needed.keys():
        raise ProtocolError(f"weights: they are of another model, with {_differing(weights, needed)}.")
    for name, array in weights.items():
        wanted = needed[name]
        if array.shape != wanted.shape or array.dtype != wanted.dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise ProtocolError(f"weights: {name} is {found} and not {wanted.dtype}{list(wanted.shape)}.")
        if not np.isfinite(array).all() or np.abs(array).max(initial=0) > LARGEST:
            raise ProtocolError(f"weights: {name} holds numbers that are not finite, or beyond {LARGEST:g}.")
    checked: Model = restore_arrays(like, weights, Path("message"))
    return checked


def _differing(weights: Weights, needed: Weights) -> str:
    name = sorted(weights.keys() ^ needed.keys())[0]
    return f"{name} {'that ours lacks' if name in weights else 'missing'}"
