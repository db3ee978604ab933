"""Errors as documents (RFC 9457): a status, a sentence, and the fields that are concerned. Never a stack trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from starlette.responses import Response

from tandem.errors import InputError
from tandem.serving.bodies import BodyError
from tandem.serving.group_commit import QueueFullError
from tandem.serving.messages import FleetMismatchError, ReportError
from tandem.serving.service import ConflictError, NotFoundError, NotReadyError
from tandem.serving.storage import StorageUnavailableError

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1


class RequestError(Exception):
    """A request that is refused, with the status of the answer."""

    def __init__(
        self, status: int, detail: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.errors = [] if field is None else [(field, detail)]
        self.headers = headers


def problem_response(
    status: int, detail: str, errors: Sequence[tuple[str, str]] = (), headers: Mapping[str, str] | None = None
) -> Response:
    """Return an error as a response."""
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "errors": [{"field": field, "problem": problem} for field, problem in errors],
    }
    return Response(json.dumps(document), status, headers, MEDIA_TYPE)


def describe_exception(error: Exception) -> Response | None:
    """Return the response for an error that a request may cause, or None for one that is a mistake in the program."""
    retry = {"Retry-After": str(RETRY_AFTER_S)}
    match error:
        case RequestError():
            return problem_response(error.status, str(error), error.errors, error.headers)
        case BodyError():
            return problem_response(422, str(error), error.errors)
        case ReportError():
            # The scheduler's field for the names of devices is called devices here.
            field = "devices" if error.field == "names" else error.field
            said = f"{field}{str(error).removeprefix(error.field)}"
            return problem_response(422, said, [(field if error.device is None else f"{field}[{error.device}]", said)])
        case FleetMismatchError():
            return problem_response(409, str(error), [("devices", str(error))])
        case NotFoundError():
            return problem_response(404, str(error), [(error.field, error.problem)])
        case ConflictError():
            return problem_response(409, str(error), [(error.field, error.problem)])
        case InputError():
            return problem_response(422, str(error))
        case StorageUnavailableError():  # its text may name files and hosts, which is for the log only
            return problem_response(503, "the database cannot be reached now; try again later", headers=retry)
        case QueueFullError():
            return problem_response(503, "too many requests wait; try again later", headers=retry)
        case NotReadyError():
            return problem_response(503, f"{error}; try again later", headers=retry)
    return None
