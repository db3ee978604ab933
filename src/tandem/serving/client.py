"""A client of the service over HTTP.

>>> from tandem.serving.client import Client
>>> with Client("http://127.0.0.1:8321", token="...") as client:  # doctest: +SKIP
...     decision = client.decide(report)
...     client.record_outcome(OutcomeRequest(round=report.round, duration_s=2.1, energy_j=8.0))
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from tandem.serving.bodies import (
    ActivatedDocument,
    DecisionDocument,
    FrontDocument,
    OperatingPointAnswer,
    OutcomeRequest,
    ReadyDocument,
    RecordedDocument,
    RoundDocument,
    RoundsDocument,
    VersionsDocument,
    report_document,
)
from tandem.serving.messages import FleetReport, OperatingPoint

__all__ = ["Client", "OutcomeRequest", "ServiceError"]

_PAUSE_S = 0.1  # before the first repeat; it doubles every time
_REPEATED = frozenset({408, 429, 503})  # statuses after which the same request may succeed
Answer = TypeVar("Answer", bound=BaseModel)


class ServiceError(Exception):
    """A request that the service refused, or could not answer. ``status`` is None if there was no answer."""

    def __init__(self, status: int | None, detail: str, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(detail)
        self.status = status
        self.fields = list(fields)  # pairs of a field and what is wrong with it


class Client:
    """Asks a service for decisions, and tells it what happened.

    A request that may be sent twice is repeated if the connection breaks or the service is unavailable: a round is
    decided once, so a repeated report gets the same decision. Rolling back and activating a version are not repeated.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout_s: float = 10.0,
        repeats: int = 5,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        """Prepare requests to ``url``.

        ``ca`` is the file of the authority that signed the service's certificate, ``certificate`` the files of the
        client's own certificate and key for mutual TLS.
        """
        verify: ssl.SSLContext | bool = True
        if ca is not None or certificate is not None:
            verify = ssl.create_default_context(cafile=None if ca is None else str(ca))
            if certificate is not None:
                verify.load_cert_chain(*map(str, certificate))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, verify=verify)
        self._repeats = repeats

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def decide(self, report: FleetReport) -> DecisionDocument:
        """Return the decisions for a round."""
        return self._ask(DecisionDocument, "POST", "/v1/decisions", encode_report(report))

    def record_outcome(self, outcome: OutcomeRequest) -> RecordedDocument:
        """Tell the service what happened in a round."""
        body = outcome.model_dump_json(exclude_none=True).encode()
        return self._ask(RecordedDocument, "POST", "/v1/outcomes", body)

    def next_round(self) -> int:
        """Return the number to use for the next round."""
        return self.rounds(limit=1).next_round

    def rounds(self, before: int | None = None, limit: int = 50) -> RoundsDocument:
        """Return a page of decided rounds, newest first."""
        parameters = {"limit": limit} | ({} if before is None else {"before": before})
        return self._ask(RoundsDocument, "GET", "/v1/rounds", parameters=parameters)

    def round(self, number: int) -> RoundDocument:
        """Return one round with its report, decision and outcome."""
        return self._ask(RoundDocument, "GET", f"/v1/rounds/{number}")

    def operating_point(self) -> OperatingPointAnswer:
        """Return the operating point and the policy that it selects."""
        return self._ask(OperatingPointAnswer, "GET", "/v1/operating-point")

    def set_operating_point(self, operating_point: OperatingPoint) -> OperatingPointAnswer:
        """Change the operating point."""
        body = json.dumps(operating_point.document()).encode()
        return self._ask(OperatingPointAnswer, "PUT", "/v1/operating-point", body)

    def front(self) -> FrontDocument:
        """Return the policies that an operating point selects from."""
        return self._ask(FrontDocument, "GET", "/v1/front")

    def versions(self) -> VersionsDocument:
        """Return all versions of the policy, newest first."""
        return self._ask(VersionsDocument, "GET", "/v1/versions")

    def activate(self, version: str) -> ActivatedDocument:
        """Use a stored version of the policy."""
        return self._ask(ActivatedDocument, "POST", f"/v1/versions/{version}/activate", repeat=False)

    def roll_back(self) -> ActivatedDocument:
        """Use the version of the policy that was active before the present one."""
        return self._ask(ActivatedDocument, "POST", "/v1/versions/roll-back", repeat=False)

    def is_ready(self) -> bool:
        """Return whether the service can decide now."""
        try:
            return self._ask(ReadyDocument, "GET", "/readyz", repeat=False).status == "ready"
        except ServiceError:
            return False

    def events(self, after: str | None = None, timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Follow what happens. Each event has its ``id``, from which another call can go on."""
        parameters = {} if after is None else {"after": after}
        timeout = httpx.Timeout(10.0, read=timeout_s)
        with self._http.stream("GET", "/v1/events", params=parameters, timeout=timeout) as response:
            if response.status_code != 200:
                response.read()
                raise _refusal(response)
            event_id = ""
            for line in response.iter_lines():
                if line.startswith("id: "):
                    event_id = line[4:]
                elif line.startswith("data: "):
                    yield {"id": event_id, **json.loads(line[6:])}

    def _ask(
        self,
        answer: type[Answer],
        method: str,
        path: str,
        body: bytes | None = None,
        parameters: dict[str, Any] | None = None,
        repeat: bool = True,
    ) -> Answer:
        headers = {} if body is None else {"Content-Type": "application/json"}
        error: ServiceError | None = None
        for attempt in range(1 + (self._repeats if repeat else 0)):
            if attempt:
                time.sleep(_PAUSE_S * 2 ** (attempt - 1))
            try:
                response = self._http.request(method, path, content=body, params=parameters, headers=headers)
            except httpx.TransportError as failure:
                error = ServiceError(None, f"{self._http.base_url}: {failure or type(failure).__name__}")
                continue
            if response.status_code == 200:
                return answer.model_validate_json(response.content)
            error = _refusal(response)
            if response.status_code not in _REPEATED:
                break
        assert error is not None
        raise error


def encode_report(report: FleetReport) -> bytes:
    """Return a report as the body of a request; equal reports have equal bytes."""
    return json.dumps(report_document(report), allow_nan=False).encode()


def _refusal(response: httpx.Response) -> ServiceError:
    try:
        problem = response.json()
        fields = [(each["field"], each["problem"]) for each in problem["errors"]]
        return ServiceError(response.status_code, str(problem["detail"]), fields)
    except (ValueError, KeyError, TypeError):  # an answer of something else on the way
        return ServiceError(response.status_code, f"status {response.status_code}")
