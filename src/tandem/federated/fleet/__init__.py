"""A fleet of separate devices and their server, as pure state machines; who carries the messages is not known here.

``station.obey`` is a device, ``coordinator.plan`` and ``closing.close`` are the server, ``playing.rounds`` is a run.
"""
