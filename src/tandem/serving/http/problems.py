"""The answers of the service to errors: a status, a sentence, and the fields that are concerned."""

from __future__ import annotations

from starlette.responses import Response

from tandem.errors import InputError
from tandem.io.http import RequestError, problem_response
from tandem.serving.bodies import BodyError
from tandem.serving.group_commit import QueueFullError
from tandem.serving.messages import FleetMismatchError, ReportError
from tandem.serving.service import ConflictError, NotFoundError, NotReadyError
from tandem.serving.storage import StorageUnavailableError

RETRY_AFTER_S = 1


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
