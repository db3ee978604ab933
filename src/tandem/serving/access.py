"""Tokens of devices and operators, and limits on their rate of requests.

A token is ``id.secret`` with a secret of 32 random bytes. The database has only the SHA-256 of the secret: a secret of
that length cannot be guessed, so a slow hash would protect nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from datetime import datetime, timedelta
from enum import StrEnum

from tandem.errors import InputError
from tandem.serving.storage import Store, StoredToken, now

_MAX_KEYS = 4096


class Role(StrEnum):
    """What the holder of a token may do. An operator may do everything that a device may."""

    DEVICE = "device"
    OPERATOR = "operator"


def create_token(store: Store, role: Role, label: str = "", days: float | None = None) -> str:
    """Store a new token and return it. It cannot be shown again."""
    if len(label) > 100 or not label.isprintable():
        raise InputError("--label: must be printable and have at most 100 characters; shorten it.")
    token_id, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
    expires_at = None if days is None else now() + timedelta(days=days)
    store.add_token(token_id, role.value, label, hash_secret(secret), expires_at)
    return f"{token_id}.{secret}"


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenBook:
    """The tokens of a fleet in memory. They are read again regularly, so that revocation reaches every process."""

    def __init__(self, tokens: list[StoredToken]) -> None:
        self.replace(tokens)

    def replace(self, tokens: list[StoredToken]) -> None:
        """Use these tokens from now on."""
        self._tokens = {token.id: token for token in tokens}

    @property
    def required(self) -> bool:
        """Whether requests need a token. Once a token was created they do, also when all are revoked."""
        return bool(self._tokens)

    def usable(self) -> bool:
        """Return whether any token is valid now."""
        moment = now()
        return any(token.is_valid(moment) for token in self._tokens.values())

    def find(self, text: str, moment: datetime | None = None) -> StoredToken | None:
        """Return the token that the text is, or None. The comparison takes the same time for every wrong secret."""
        token_id, _, secret = text.partition(".")
        token = self._tokens.get(token_id)
        expected = "0" * 64 if token is None else token.secret_sha256
        same = hmac.compare_digest(hash_secret(secret), expected)
        return token if token is not None and same and token.is_valid(moment or now()) else None


class RateLimit:
    """A limit on requests per second for each key, with bursts of two seconds."""

    def __init__(self, requests_per_s: float) -> None:
        self._rate = requests_per_s
        self._burst = max(1.0, 2 * requests_per_s)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # tokens left, and when

    def wait_s(self, key: str) -> float:
        """Count a request. Returns 0 if it is allowed, else the time after which it would be."""
        if self._rate <= 0:
            return 0.0
        moment = time.monotonic()
        left, before = self._buckets.get(key, (self._burst, moment))
        left = min(self._burst, left + (moment - before) * self._rate)
        allowed = left >= 1
        self._buckets[key] = (left - 1 if allowed else left, moment)
        self._buckets.move_to_end(key)
        if len(self._buckets) > _MAX_KEYS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._rate
