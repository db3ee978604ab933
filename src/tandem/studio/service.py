"""A running ``tandem serve``: its last rounds as an episode, and its operating point."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from tandem.serving.bodies import RoundDocument
from tandem.serving.client import Client, ServiceError
from tandem.serving.messages import OperatingPoint
from tandem.studio.problems import UnreachableError

Answer = TypeVar("Answer")
MAX_KEPT = 1000  # rounds that are not asked for again
REPORTED = ("queue", "data", "data_age_s", "model_age_s")
DECIDED = ("power_w", "frequency_hz")
UNKNOWN_LIMITS = dict.fromkeys(("queue_max", "data_max", "round_max_s", "power_max_w", "frequency_max_hz"))


class ServiceConnection:
    """The connection to one service."""

    def __init__(self, url: str, token: str | None) -> None:
        """Use the service at a URL; to change its operating point, the token must be an operator's."""
        self.url = url
        self._client = Client(url, token, timeout_s=5.0, repeats=0)
        self._rounds: dict[int, RoundDocument] = {}

    def state(self) -> dict[str, Any]:
        """Return the operating point and the policy in use; ``problem`` says why if the service does not answer."""
        try:
            answer = self._ask(self._client.operating_point).model_dump(mode="json")
            fleet = self._ask(lambda: self._client.rounds(limit=1)).fleet
        except UnreachableError as error:
            return {"url": self.url, "reachable": False, "problem": str(error)}
        return {"url": self.url, "fleet": fleet, "reachable": True, "problem": None, **answer}

    def set_operating_point(self, point: OperatingPoint) -> dict[str, Any]:
        """Change the operating point."""
        self._ask(lambda: self._client.set_operating_point(point))
        return self.state()

    def episode(self, last: int) -> dict[str, Any]:
        """Return the last rounds as an episode. What the service was not told is null."""
        page = self._ask(lambda: self._client.rounds(limit=last))
        documents = [self._round(row.round, row.outcome is not None) for row in reversed(page.rounds)]
        devices = list(dict.fromkeys(name for one in documents for name in one.decision.devices))
        durations = [(one.outcome or {}).get("duration_s") for one in documents]
        starts = [0.0, *itertools.accumulate(duration or 0.0 for duration in durations)][:-1]
        decisions = [one.decision.model_dump(mode="json") for one in documents]
        reports, outcomes = [one.report for one in documents], [one.outcome or {} for one in documents]
        sources = {**dict.fromkeys(REPORTED, reports), **dict.fromkeys(DECIDED, decisions)}
        columns = {name: [_column(row, name, devices) for row in source] for name, source in sources.items()}
        modes = [_column(row, "mode", devices) for row in decisions]
        changes = [{change.device: change.reason for change in one.decision.changes} for one in documents]
        empty = [[None] * len(devices) for _ in documents]
        return {
            "live": True,
            "title": f"fleet {page.fleet} of {self.url}",
            "devices": devices,
            "numbers": [one.round for one in documents],
            "duration_s": durations,
            "time_s": starts,
            "limits": UNKNOWN_LIMITS,
            "train": [[None if mode is None else mode == "train" for mode in row] for row in modes],
            **columns,
            "accuracy": empty,
            "latency_s": empty,
            "energy_j": [_column(row, "device_energy_j", devices) for row in outcomes],
            "served": [_column(row, "requests_served", devices) for row in outcomes],
            "changed": [[change.get(name) for name in devices] for change in changes],
            "violated": empty,  # the service does not tell
            "means": {
                "accuracy": [row.get("accuracy") for row in outcomes],
                "latency_s": [None] * len(outcomes),
                "energy_j": [_mean_energy(one) for one in documents],
            },
            "latency_quantiles": None,
            "objectives": None,
            "violation_rate": None,
        }

    def _round(self, number: int, complete: bool) -> RoundDocument:
        """Return a round; one whose outcome is known does not change any more."""
        known = self._rounds.get(number)
        if known is None or (complete and known.outcome is None):
            known = self._rounds[number] = self._ask(lambda: self._client.round(number))
            while len(self._rounds) > MAX_KEPT:
                del self._rounds[min(self._rounds)]
        return known

    def _ask(self, request: Callable[[], Answer]) -> Answer:
        try:
            return request()
        except ServiceError as error:
            if error.status in (401, 403):
                raise UnreachableError(
                    f"{self.url}: {error}; set TANDEM_TOKEN to an operator's token ('tandem token create') and start "
                    "the studio again."
                ) from None
            raise UnreachableError(f"{self.url}: {error}.") from None


def _column(document: Mapping[str, Any], name: str, devices: Sequence[str]) -> list[Any]:
    """Return a column of a report, decision or outcome for these devices; None for what is not in it."""
    values = document.get(name)
    known = dict(zip(document.get("devices", ()), values, strict=False)) if isinstance(values, list) else {}
    return [known.get(device) for device in devices]


def _mean_energy(one: RoundDocument) -> float | None:
    total = (one.outcome or {}).get("energy_j")
    devices = len(one.decision.devices)
    return None if total is None or not devices else total / devices
