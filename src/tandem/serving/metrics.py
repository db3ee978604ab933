"""Prometheus metrics of a server process. No label has a device, a token or a round as its value."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The counters of one process, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tandem_http_requests", "Requests answered.", ["method", "path", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "tandem_http_request_seconds", "Time to answer.", ["path"], registry=self.registry, buckets=_SECONDS
        )
        self.decisions = Counter("tandem_decisions", "Rounds decided by this process.", registry=self.registry)
        self.repeats = Counter(
            "tandem_decisions_repeated", "Repeated requests, answered from the database.", registry=self.registry
        )
        self.decision_seconds = Histogram(
            "tandem_decision_seconds",
            "Time to decide, without HTTP and storage.",
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.devices = Counter("tandem_device_decisions", "Decisions by mode.", ["mode"], registry=self.registry)
        self.absent = Counter("tandem_devices_absent", "Devices assumed to serve.", registry=self.registry)
        self.changes = Counter(
            "tandem_shield_changes", "Decisions changed by the shield, by rule.", ["rule"], registry=self.registry
        )
        self.outcomes = Counter("tandem_outcomes", "Outcomes recorded by this process.", registry=self.registry)
        self.late = Counter("tandem_devices_late", "Devices reported late in outcomes.", registry=self.registry)
        self.commit_seconds = Histogram(
            "tandem_commit_seconds", "Time of a transaction.", registry=self.registry, buckets=_SECONDS
        )
        self.commit_size = Histogram(
            "tandem_commit_items", "Decisions and outcomes in a transaction.", registry=self.registry, buckets=_SIZES
        )
        self.pending = Gauge("tandem_commit_pending", "Items that wait for the database.", registry=self.registry)
        self.database_up = Gauge(
            "tandem_database_up", "1 if the database answered at the last try.", registry=self.registry
        )
        self.newest_round = Gauge("tandem_newest_round", "Number of the newest round.", registry=self.registry)
        self.revision = Gauge(
            "tandem_revision", "Changes of version and operating point so far.", registry=self.registry
        )
        self.subscribers = Gauge("tandem_event_subscribers", "Open event streams.", registry=self.registry)

    def observe_commit(self, size: int, duration_s: float) -> None:
        """Count a transaction."""
        self.commit_size.observe(size)
        self.commit_seconds.observe(duration_s)

    def render(self) -> bytes:
        """Return the metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
