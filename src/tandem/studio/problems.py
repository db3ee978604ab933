"""Errors of requests, and the statuses of their answers."""

from __future__ import annotations

from tandem.errors import InputError


class NotFoundError(InputError):
    """Something that does not exist: status 404."""


class NotReadyError(InputError):
    """Something that is not possible now: status 409."""


class UnreachableError(InputError):
    """A service that does not answer, or refuses: status 502."""
