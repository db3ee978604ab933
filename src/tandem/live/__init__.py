"""Rounds of live devices on a wall clock: measured state in, decisions of 'tandem serve', federated averaging.

- ``server``: ``LiveServer``, which runs the rounds; it knows a transport of messages and a service that decides.
- ``sockets``: a transport to devices on this machine.
"""

from tandem.live.server import LiveConfig, LiveRound, LiveServer
from tandem.live.sockets import SocketTransport

__all__ = ["LiveConfig", "LiveRound", "LiveServer", "SocketTransport"]
