"""A node of a Flower federation in one process: it passes each message to the device's socket, and the report back.

Flower's own SuperNode asks for messages every 3 s and starts a process for each of them, so an exchange takes 5 s or
more. This node uses the same connection to the SuperLink (registration, heartbeat, TLS, authentication), asks ten times
a second, and handles messages itself. The SuperLink and the ServerApp see no difference. The connection is an internal
interface of Flower, whose version is pinned.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supernode.fleet_http_connection import http_request_response

from tandem.device.control import request_report
from tandem.errors import InputError

POLL_S = 0.1  # between two questions for messages
BACKOFF_S = 0.02  # before a part of a message that is still being sent is asked for again; Flower's default is 1 s
MAX_BACKOFF_S = 0.5
CLIENT_APP_ERROR = 2  # Flower's code for an exception in the ClientApp
logger = logging.getLogger(__name__)


def read_keys(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """Read the private key of a node from an OpenSSH file; returns it with its public key. Raises InputError."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise InputError(f"--node-key {path}: cannot be read ({error.strerror}); check the path.") from None
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(
            f"--node-key {path}: is not a private key; make one with 'ssh-keygen -t ecdsa -b 384 -N \"\"'."
        )
    return key, key.public_key()


def run_node(
    superlink: str,
    device: int,
    address: Path,
    *,
    root_certificates: Path | None = None,
    keys: tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey] | None = None,
    poll_s: float = POLL_S,
) -> None:
    """Connect a device to a SuperLink, as soon as the device listens at ``address``, until the process ends.

    Without ``root_certificates`` the connection is not encrypted. ``keys`` are a pair of a private and a public key for
    a SuperLink that authenticates its nodes.
    """
    while not address.exists():  # the device is starting
        time.sleep(POLL_S)
    certificates = None if root_certificates is None else root_certificates.read_bytes()
    with http_request_response(superlink, certificates is None, certificates, keys) as connection:
        node_id, receive, send, _, _, pull_object, push_object, confirm = connection
        logger.info("device %d is node %d of %s", device, node_id, superlink)
        while True:
            received = receive()
            if received is None:
                time.sleep(poll_s)
                continue
            head, tree = received
            run_id, began_s = head.metadata.run_id, time.monotonic()
            try:
                message = pull_and_inflate_object_from_tree(
                    tree,
                    partial(pull_object, run_id),
                    partial(confirm, run_id),
                    return_type=Message,
                    initial_backoff=BACKOFF_S,
                    backoff_cap=MAX_BACKOFF_S,
                )
                message.metadata.__dict__["_message_id"] = head.metadata.message_id
                reply = answer(message, device, address)
                with no_object_id_recompute():
                    reply.metadata.__dict__["_message_id"] = reply.object_id
                    objects = get_all_nested_objects(reply)
                    missing, session = send(reply, get_object_tree(reply), time.monotonic() - began_s)
                    push_objects(objects, partial(push_object, run_id, session), object_ids_to_push=missing)
            except Exception:  # the run has ended, or the SuperLink was away: the next message may be answered
                logger.exception("a message could not be answered")


def answer(message: Message, device: int, address: Path) -> Message:
    """Return the reply to a message: which device this is, or the device's report."""
    try:
        if message.metadata.message_type.startswith("query"):
            return Message(RecordDict({"fleet": ConfigRecord({"device": device})}), reply_to=message)
        fields: Any = message.content["fleet"]
        report = request_report(address, fields["instruction"], float(fields["deadline_s"]))
        return Message(RecordDict({"fleet": ConfigRecord({"report": report})}), reply_to=message)
    except Exception as error:
        return Message(Error(CLIENT_APP_ERROR, f"{error}"), reply_to=message)
