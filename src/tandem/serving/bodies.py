"""The JSON documents of the service: requests, which are checked when they are read, and answers.

Reports and outcomes are columns: one list for each quantity, with one entry for each device. They are validated from
bytes, strictly: a number is never read from text, and NaN, infinity and unknown fields are refused.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from tandem.errors import field_error, one_line
from tandem.objectives import OBJECTIVE_LABELS
from tandem.serving.messages import DeviceProfile, FleetReport, OperatingPoint

MAX_ROUND = 2**31 - 1
_LARGEST = 1e15  # of a reported value; products of a few of them are finite in single precision
_LARGEST_GAIN = 1e18

DeviceName = Annotated[str, StringConstraints(min_length=1, max_length=100)]
RoundNumber = Annotated[int, Ge(0), Le(MAX_ROUND)]
Quantity = Annotated[float, Ge(0), Le(_LARGEST), Field(allow_inf_nan=False)]
Share = Annotated[float, Ge(0), Le(1), Field(allow_inf_nan=False)]
Gain = Annotated[float, Ge(0), Le(_LARGEST_GAIN), Field(allow_inf_nan=False)]
# A list stops at its first error: a body of a hundred thousand wrong numbers is refused with one.
Names = Annotated[list[DeviceName], Field(fail_fast=True)]
Quantities = Annotated[list[Quantity], Field(fail_fast=True)]
Shares = Annotated[list[Share], Field(fail_fast=True)]
Gains = Annotated[list[Gain], Field(fail_fast=True)]
Booleans = Annotated[list[bool], Field(fail_fast=True)]

Model = TypeVar("Model", bound=BaseModel)


class BodyError(ValueError):
    """A request body that cannot be used: pairs of a field and what is wrong with it."""

    def __init__(self, errors: list[tuple[str, str]]) -> None:
        super().__init__("; ".join(f"{field}: {problem}" if field else problem for field, problem in errors))
        self.errors = errors


def parse(model: type[Model], body: bytes) -> Model:
    """Read a request body. Raises BodyError, which names fields and does not repeat the input."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False, include_context=False)
        raise BodyError([(_field_path(each["loc"]), one_line(each["msg"])) for each in found[:10]]) from None


def _field_path(location: tuple[str | int, ...]) -> str:
    path = ""
    for step in location[:8]:
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{one_line(step)[:60]}"
    return path


class Request(BaseModel):
    """A request body: strict, without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class NewDevice(Request):
    """A device that the scenario does not have; fields that are null are those of the device ``like``."""

    name: DeviceName
    like: DeviceName | None = None
    training_cycles_per_sample: Quantity | None = None
    inference_cycles_per_request: Quantity | None = None
    frequency_min_hz: Quantity | None = None
    frequency_max_hz: Quantity | None = None
    power_min_w: Quantity | None = None
    power_max_w: Quantity | None = None
    capacitance: Quantity | None = None
    switch_energy_j: Quantity | None = None
    request_rate_per_s: Quantity | None = None
    distance_m: Quantity | None = None
    shadowing_db: Annotated[float, Ge(-200), Le(200), Field(allow_inf_nan=False)] | None = None
    samples_per_request: Quantity | None = None


def _check_columns(body: BaseModel, columns: tuple[str, ...], size: int) -> None:
    for name in columns:
        column = getattr(body, name)
        if column is not None and len(column) != size:
            raise field_error(name, said=f"has {len(column)} entries for {size} devices")


def _check_different(names: list[str], field: str) -> None:
    if len(set(names)) != len(names):
        raise field_error(field, said="has a name twice; name each device once")


class DecisionRequest(Request):
    """The devices at the start of a round: one list for each quantity, one entry for each device that reports."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "round": 12,
                    "devices": ["camera-1", "camera-2"],
                    "queue": [4, 0],
                    "data": [31, 12],
                    "last_duration_s": 2.4,
                    "last_train": [True, False],
                    "last_power_w": [0.2, 0.05],
                    "last_frequency_hz": [1.2e9, 0.8e9],
                    "waited_s": [3.1, 0],
                    "data_age_s": [2.2, 1.0],
                    "model_age_s": [2.4, 7.9],
                    "model_accuracy": [0.81, 0.78],
                    "last_gain": [5.1e4, 2.2e4],
                }
            ]
        }
    )

    round: RoundNumber = Field(
        description="Number of the round. A round is decided once; a repeat gets the same answer."
    )
    devices: Names = Field(min_length=1, description="Names of the devices that report, in any order.")
    queue: Quantities = Field(description="Requests waiting.")
    data: Quantities = Field(description="New training samples.")
    last_duration_s: Quantity = Field(0.0, description="Duration of the round before, in s.")
    last_train: Booleans | None = Field(None, description="Whether the device trained in the round before.")
    last_power_w: Quantities | None = Field(None, description="Its transmission power in the round before, in W.")
    last_frequency_hz: Quantities | None = Field(None, description="Its frequency in the round before, in Hz.")
    waited_s: Quantities | None = Field(None, description="Sum over waiting requests of the time waited, in s.")
    data_age_s: Quantities | None = Field(None, description="Mean age of the samples, in s; 1 without samples.")
    model_age_s: Quantities | None = Field(None, description="Time since the device last trained, in s.")
    model_accuracy: Shares | None = Field(None, description="Accuracy of the model when the device last trained.")
    last_gain: Gains | None = Field(None, description="Signal-to-noise ratio for one watt in the round before.")
    present: Booleans | None = Field(None, description="False for a late device, whose row has its last known values.")
    new_devices: list[NewDevice] = Field(
        default_factory=list, max_length=1000, description="Devices in this report that the scenario does not have."
    )

    @model_validator(mode="after")
    def _check(self) -> DecisionRequest:
        _check_columns(self, _REPORT_COLUMNS, len(self.devices))
        _check_different(self.devices, "devices")
        return self

    def report(self) -> FleetReport:
        """Return the report for the scheduler."""

        def column(values: list[float] | None) -> Any:
            return None if values is None else np.asarray(values, np.float64)

        return FleetReport(
            names=self.devices,
            round=self.round,
            queue=column(self.queue),
            data=column(self.data),
            last_duration_s=self.last_duration_s,
            last_train=None if self.last_train is None else np.asarray(self.last_train, bool),
            last_power_w=column(self.last_power_w),
            last_frequency_hz=column(self.last_frequency_hz),
            waited_s=column(self.waited_s),
            data_age_s=column(self.data_age_s),
            model_age_s=column(self.model_age_s),
            model_accuracy=column(self.model_accuracy),
            last_gain=column(self.last_gain),
            present=None if self.present is None else np.asarray(self.present, bool),
            new_devices=tuple(DeviceProfile(**device.model_dump()) for device in self.new_devices),
        )


_REPORT_COLUMNS = (
    *("queue", "data", "last_train", "last_power_w", "last_frequency_hz", "waited_s"),
    *("data_age_s", "model_age_s", "model_accuracy", "last_gain", "present"),
)


def report_document(report: FleetReport) -> dict[str, Any]:
    """Return a report as the document that ``DecisionRequest`` reads."""
    document: dict[str, Any] = {"round": report.round, "devices": list(report.names)}
    for name in DecisionRequest.model_fields:
        value = getattr(report, name, None)
        if name in document or name == "new_devices" or value is None:
            continue
        document[name] = np.asarray(value).tolist()
    if report.new_devices:
        given = [asdict(device) for device in report.new_devices]
        document["new_devices"] = [{k: v for k, v in device.items() if v is not None} for device in given]
    return document


class OutcomeRequest(Request):
    """What happened in a round that was decided. The columns by device are optional; tuning estimates from them."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"round": 12, "duration_s": 2.2, "energy_j": 8.1, "accuracy": 0.82, "late": ["camera-2"]}]
        }
    )

    round: RoundNumber
    duration_s: Quantity = Field(description="Duration of the round, in s.")
    energy_j: Quantity = Field(description="Energy of all devices in the round, in J.")
    energy_is_estimated: bool = Field(False, description="Whether a model, not a meter, gave some of the energy.")
    accuracy: Share | None = Field(None, description="Accuracy, if it is known.")
    late: Names = Field(default_factory=list, description="Devices that did not finish in time.")
    devices: Names = Field(default_factory=list, description="Devices of the columns below, in any order.")
    requests_arrived: Quantities | None = None
    requests_served: Quantities | None = None
    samples_arrived: Quantities | None = None
    compute_s: Quantities | None = Field(None, description="Time of training or inference, in s.")
    upload_s: Quantities | None = Field(None, description="Time of the upload, in s; 0 for a device that serves.")
    device_energy_j: Quantities | None = Field(None, description="Energy, in J.")
    gain: Gains | None = Field(None, description="Signal-to-noise ratio for one watt.")

    @model_validator(mode="after")
    def _check(self) -> OutcomeRequest:
        _check_columns(self, _OUTCOME_COLUMNS, len(self.devices))
        _check_different(self.devices, "devices")
        _check_different(self.late, "late")
        return self


_OUTCOME_COLUMNS = (
    *("requests_arrived", "requests_served", "samples_arrived", "compute_s", "upload_s", "device_energy_j", "gain"),
)


class Preference(Request):
    """Weights of the objectives; they are scaled to a sum of 1."""

    accuracy: Quantity = 0.0
    latency: Quantity = 0.0
    energy: Quantity = 0.0

    @model_validator(mode="after")
    def _check(self) -> Preference:
        if self.accuracy + self.latency + self.energy <= 0:
            raise field_error(said="has only weights of 0; make at least one larger")
        return self


class OperatingPointRequest(Request):
    """What the operator wants: weights of the objectives, limits on their mean values, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"preference": {"accuracy": 1, "latency": 0, "energy": 0}, "max_latency_s": 3, "max_energy_j": 10}
            ]
        }
    )

    preference: Preference | None = None
    min_accuracy: Share | None = None
    max_latency_s: Quantity | None = None
    max_energy_j: Quantity | None = None

    def operating_point(self) -> OperatingPoint:
        """Return the operating point for the scheduler."""
        weights = None
        if self.preference is not None:
            given = self.preference
            total = given.accuracy + given.latency + given.energy
            weights = (given.accuracy / total, given.latency / total, given.energy / total)
        return OperatingPoint(weights, self.min_accuracy, self.max_latency_s, self.max_energy_j)


def read_operating_point(document: dict[str, Any]) -> OperatingPoint:
    """Return the operating point that ``OperatingPoint.document`` wrote."""
    weights = document.get("preference")
    preference = None
    if weights is not None:
        accuracy, latency, energy = (float(weights[label]) for label in OBJECTIVE_LABELS)
        preference = (accuracy, latency, energy)
    limits = (document.get(name) for name in ("min_accuracy", "max_latency_s", "max_energy_j"))
    return OperatingPoint(preference, *limits)


# Answers


class Weights(BaseModel):
    """Weights of the objectives."""

    accuracy: float
    latency: float
    energy: float


class Objectives(BaseModel):
    """Mean values of the objectives, as measured after training."""

    accuracy: float
    latency_s: float
    energy_j: float


class OperatingPointDocument(BaseModel):
    """What the operator wants."""

    preference: Weights | None
    min_accuracy: float | None
    max_latency_s: float | None
    max_energy_j: float | None


class PolicyDocument(BaseModel):
    """The policy of the front that the operating point selects, and the reason."""

    index: int
    network: int
    preference: Weights
    objectives: Objectives
    violation_rate: float
    reason: str


class Change(BaseModel):
    """A device whose decision differs from the output of the network, and why."""

    device: str
    rules: list[str]
    reason: str


class DecisionDocument(BaseModel):
    """The decisions of a round, one entry for each device of the report, and their explanation."""

    fleet: str
    round: int
    devices: list[str]
    mode: list[Literal["train", "serve"]]
    power_w: list[float] = Field(description="Transmission power; a device that serves does not use it.")
    frequency_hz: list[float]
    absent: list[str] = Field(description="Devices of the fleet that did not report and are assumed to serve.")
    late: list[str] = Field(description="Devices with last known values, which are assumed to serve.")
    version: str = Field(description="Version of the policy.")
    policy: PolicyDocument
    operating_point: OperatingPointDocument
    changes: list[Change] = Field(description="What the shield changed, and why.")


class RecordedDocument(BaseModel):
    """The answer to an outcome."""

    fleet: str
    round: int
    recorded: bool


class OperatingPointAnswer(BaseModel):
    """The operating point and the policy that it selects."""

    operating_point: OperatingPointDocument
    policy: PolicyDocument
    version: str


class FrontPolicy(BaseModel):
    """A policy of the front."""

    index: int
    preference: Weights
    objectives: Objectives
    violation_rate: float
    within_tolerance: bool


class FrontDocument(BaseModel):
    """The policies that an operating point selects from."""

    version: str
    policies: list[FrontPolicy]
    active: int = Field(description="Index of the policy that the operating point selects.")


class VersionDocument(BaseModel):
    """A version of the policy."""

    version: str
    source: str
    note: Any
    published_at: str
    active: bool


class VersionsDocument(BaseModel):
    """All versions, newest first."""

    active: str | None
    versions: list[VersionDocument]


class TuningDocument(BaseModel):
    """The result of a background tuning; see docs/serving-http.md for the other fields."""

    model_config = ConfigDict(extra="allow")

    at: str
    version: str = Field(description="The version that was active.")
    published: str | None = Field(description="The new version; null if the active one was kept.")
    reason: str
    newest_round: int


class TuningsDocument(BaseModel):
    """Results of background tuning, newest first."""

    tunings: list[TuningDocument]


class ActivatedDocument(BaseModel):
    """The version that is used from now on."""

    active: str
    policy: PolicyDocument


class RoundSummary(BaseModel):
    """A decided round in brief."""

    round: int
    devices: int
    training: int
    version: str
    operating_point: OperatingPointDocument
    decided_at: str
    outcome: dict[str, Any] | None


class RoundsDocument(BaseModel):
    """Rounds, newest first."""

    fleet: str
    next_round: int = Field(description="The number to use for the next round.")
    rounds: list[RoundSummary]
    before: int | None = Field(description="Value of 'before' for the next page; null on the last page.")


class RoundDocument(RoundSummary):
    """A decided round with the report and the decision."""

    report: dict[str, Any]
    decision: DecisionDocument


class HealthDocument(BaseModel):
    """The answer of a process that runs."""

    status: Literal["ok"]


class ReadyDocument(BaseModel):
    """Whether the service can decide."""

    status: Literal["ready", "not ready"]
    database: str
    policy: str


class FieldProblem(BaseModel):
    """A field that cannot be used."""

    field: str
    problem: str


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: Literal["about:blank"]
    title: str
    status: int
    detail: str
    errors: list[FieldProblem]
