"""The messages of a simulated fleet: one instruction to and one report from each device in each round.

``tandem.device.messages`` has their encoding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from tandem.device.messages import NO_ROUND as NO_ROUND
from tandem.device.messages import Amount, Message, Number, Share, Weights, check_weights
from tandem.device.messages import ProtocolError as ProtocolError
from tandem.device.messages import from_bytes as from_bytes
from tandem.device.messages import to_bytes as to_bytes
from tandem.federated.algorithm import Model
from tandem.io.tree_io import flatten_arrays, restore_arrays
from tandem.rng import FIRST_EPISODE_STREAM

NO_ANSWER = "no answer in time"  # the reason why a device has no report, if nothing else is known
MAX_ROUND = FIRST_EPISODE_STREAM - 1
Round = Annotated[int, Field(ge=0, le=MAX_ROUND)]
RoundOrNone = Annotated[int, Field(ge=NO_ROUND, le=MAX_ROUND)]


class Instruction(Message):
    """The instruction of a device for a round, and the last of its updates that the server has used.

    ``weights``: the global model, for a device that trains or whose last update was acknowledged.
    """

    round: Round
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

    round: Round
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
    accuracy: Share
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


def validate_weights(weights: Weights, like: Model) -> Model:
    """Return the model with these weights; they must be finite, with the names, shapes and types of ``like``."""
    check_weights(weights, flatten_arrays(like))
    checked: Model = restore_arrays(like, weights, Path("message"))
    return checked
