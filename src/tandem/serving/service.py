"""The service without HTTP: a scheduler, a store, and what keeps the two in agreement.

Bytes in, bytes out. A decision is stored before it is returned. Operating point and version are those of the database:
if they were changed by another process while a decision was made, it is made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import tempfile
import time
from collections import Counter as Tally
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic_core import to_json

from tandem.errors import InputError
from tandem.objectives import OBJECTIVE_KEYS, OBJECTIVE_LABELS
from tandem.serving.access import TokenBook
from tandem.serving.bodies import (
    MAX_ROUND,
    BodyError,
    DecisionRequest,
    OperatingPointRequest,
    OutcomeRequest,
    parse,
    read_operating_point,
)
from tandem.serving.group_commit import GroupCommit
from tandem.serving.messages import OperatingPoint, ShieldRule
from tandem.serving.metrics import Metrics
from tandem.serving.policy_file import PolicyFile, read_policy_file, write_policy_file
from tandem.serving.scheduler import Scheduler
from tandem.serving.storage import (
    FleetState,
    NewOutcome,
    NewRound,
    Retention,
    RoundConflictError,
    RoundError,
    StaleRoundError,
    StorageUnavailableError,
    Store,
    StoredRound,
    SupersededError,
    UnknownRoundError,
    UnknownVersionError,
)

REFRESH_S = 1.0  # how often changes by other processes are read, if no decision meets them before
ANSWER_TIMEOUT_S = 20.0
_LARGE_BODY = 128 * 2**10  # bytes; a larger one is handled in a thread, so that small requests need not wait
_ATTEMPTS = 5
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


class ConflictError(Exception):
    """A request that cannot be fulfilled in the present state. ``field`` names what to change."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotFoundError(ConflictError):
    """A request about something that is not stored."""


class NotReadyError(Exception):
    """The service cannot decide now."""


@dataclass(frozen=True)
class ServiceConfig:
    """Limits and retention of a service."""

    max_devices: int = 100_000
    retention: Retention = field(default_factory=Retention)


@dataclass(frozen=True)
class _Active:
    """The scheduler for a revision of the state."""

    scheduler: Scheduler
    state: FleetState


def pack_policy_file(policy_file: PolicyFile) -> bytes:
    """Return the content of an export file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        write_policy_file(path, policy_file)
        return path.read_bytes()


def unpack_policy_file(content: bytes) -> PolicyFile:
    """Return the policy file with this content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.safetensors"
        path.write_bytes(content)
        return read_policy_file(path)


def publish(store: Store, policy_file: PolicyFile, note: Any = None, *, activate: bool = False, by: str) -> bool:
    """Store a policy file as a version, and activate it if asked. Returns False if it was stored already.

    Raises InputError, and activates nothing, if no policy of it meets the limits of the operating point.
    """
    content = pack_policy_file(policy_file)
    is_new = store.publish_version(policy_file.version, content, policy_file.source, note)
    while activate:
        state = store.read_state()
        Scheduler(policy_file, read_operating_point(state.operating_point))
        with contextlib.suppress(SupersededError):
            store.activate_version(policy_file.version, by, state.revision)
            break
    return is_new


class Service:
    """Decides, records and answers questions for one fleet."""

    def __init__(self, store: Store, config: ServiceConfig | None = None, metrics: Metrics | None = None) -> None:
        self.store = store
        self.config = config or ServiceConfig()
        self.metrics = metrics or Metrics()
        self.tokens = TokenBook([])
        self._active: _Active | None = None
        self._problem = "is not loaded yet"  # why there is no scheduler
        self._files: OrderedDict[str, PolicyFile] = OrderedDict()  # by version
        self._devices: OrderedDict[int, frozenset[str]] = OrderedDict()  # of recent rounds
        self._refreshing = asyncio.Lock()
        self._commit: GroupCommit | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the state and begin to work. A database that is away is waited for in the background."""
        self._commit = GroupCommit(self.store, self.config.retention, self.metrics.observe_commit)
        with contextlib.suppress(StorageUnavailableError):
            await self.refresh()
        self._task = asyncio.create_task(self._refresh_regularly())

    async def close(self) -> None:
        """Store what was submitted and stop."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._commit is not None:
            await self._commit.close()

    async def refresh(self) -> None:
        """Read operating point, version and tokens, and prepare the scheduler for them."""
        async with self._refreshing:
            try:
                self._active = await asyncio.to_thread(self._load, self._active)
            except StorageUnavailableError:
                self.metrics.database_up.set(0)
                raise
            except (InputError, UnknownVersionError) as error:
                # Another process activated what this one cannot use. Deciding with the old version would be refused.
                self._active, self._problem = None, f"cannot be used: {error}"
                logger.error("the active version %s", self._problem)
        if self._commit is not None:
            self.metrics.pending.set(self._commit.pending)

    def _load(self, active: _Active | None) -> _Active | None:
        self.tokens.replace(self.store.list_tokens())
        state = self.store.read_state()
        self.metrics.database_up.set(1)
        self.metrics.newest_round.set(state.newest_round)
        self.metrics.revision.set(state.revision)
        if state.version is None:
            self._problem = "is missing: no version was published"
            return None
        if active is not None and active.state.revision == state.revision:
            return active
        point = read_operating_point(state.operating_point)
        return _Active(Scheduler(self._policy_file(state.version), point), state)

    def _policy_file(self, version: str) -> PolicyFile:
        if version not in self._files:
            self._files[version] = unpack_policy_file(self.store.read_version(version))
            if len(self._files) > 4:
                self._files.popitem(last=False)
        return self._files[version]

    async def _refresh_regularly(self) -> None:
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
            except StorageUnavailableError as error:
                logger.warning("the database is away: %s", error)
            except Exception:
                logger.exception("the state could not be read")

    def _present(self) -> _Active:
        if self._active is None:
            raise NotReadyError(f"the policy {self._problem}")
        return self._active

    # Decisions and outcomes

    async def decide(self, body: bytes) -> bytes:
        """Decide a round. The same body gets the same bytes, whenever and whichever process is asked."""
        is_large = len(body) > _LARGE_BODY
        request = await asyncio.to_thread(self._read_report, body) if is_large else self._read_report(body)
        for _ in range(_ATTEMPTS):
            active = self._present()
            args = (active, request, body)
            item, tally = await asyncio.to_thread(self._decide, *args) if is_large else self._decide(*args)
            answer = await self._store_item(item)
            if isinstance(answer, bytes):
                if answer is item.decision:
                    self._count(item, tally)
                    self._remember(item.round, frozenset(request.devices))
                else:
                    self.metrics.repeats.inc()
                return answer
            if not isinstance(answer, SupersededError):
                raise _round_problem(answer, item.round)
            await self.refresh()
        raise NotReadyError("the operating point or the version changes too often")

    def _read_report(self, body: bytes) -> DecisionRequest:
        request = parse(DecisionRequest, body)
        if len(request.devices) > self.config.max_devices:
            raise BodyError(
                [("devices", f"has {len(request.devices)} names; at most {self.config.max_devices} are allowed")]
            )
        return request

    def _decide(self, active: _Active, request: DecisionRequest, body: bytes) -> tuple[NewRound, Tally[str]]:
        started = time.perf_counter()
        decision = active.scheduler.decide(request.report())
        self.metrics.decision_seconds.observe(time.perf_counter() - started)
        if not (np.isfinite(decision.power_w).all() and np.isfinite(decision.frequency_hz).all()):
            raise BodyError([("", "has values so large that no decision can be computed; check their units")])
        rules = decision.rules
        changed = np.flatnonzero(rules)
        codes: list[int] = rules[changed].tolist()
        names = request.devices
        changes = [
            {"device": names[n], "rules": _rule_names(code), "reason": _rule_sentence(code)}
            for n, code in zip(changed.tolist(), codes, strict=True)
        ]
        # As FleetDecision.document, with the texts of the rules from a cache.
        document = {
            "fleet": self.store.fleet,
            "round": decision.round,
            "devices": names,
            "mode": np.where(decision.train, "train", "serve").tolist(),
            "power_w": decision.power_w.tolist(),
            "frequency_hz": decision.frequency_hz.tolist(),
            "absent": decision.absent,
            "late": decision.late,
            "version": decision.version,
            "policy": decision.policy.document(),
            "operating_point": decision.operating_point.document(),
            "changes": changes,
        }
        tally: Tally[str] = Tally()
        for code, count in Tally(codes).items():
            for name in _rule_names(code):
                tally[name] += count
        tally["absent"] = len(decision.absent) + len(decision.late)
        item = NewRound(
            round=request.round,
            digest=hashlib.sha256(body).digest(),
            report=body,
            decision=to_json(document),
            devices=len(request.devices),
            training=int(np.count_nonzero(decision.train)),
            version=str(active.state.version),
            operating_point=active.state.operating_point,
            revision=active.state.revision,
        )
        return item, tally

    def _count(self, item: NewRound, tally: Tally[str]) -> None:
        self.metrics.decisions.inc()
        self.metrics.devices.labels("train").inc(item.training)
        self.metrics.devices.labels("serve").inc(item.devices - item.training)
        self.metrics.absent.inc(tally.pop("absent"))
        for rule, count in tally.items():
            self.metrics.changes.labels(rule).inc(count)

    async def record_outcome(self, body: bytes) -> bytes:
        """Record what happened in a round. The same body may be sent again."""
        request = parse(OutcomeRequest, body)
        named = {"late": request.late, "devices": request.devices}
        if any(named.values()):
            known = await self._devices_of(request.round)
            for name, devices in named.items():
                for index, device in enumerate(devices):
                    if device not in known:
                        raise BodyError([(f"{name}[{index}]", "is not a device of this round")])
        answer = await self._store_item(NewOutcome(request.round, hashlib.sha256(body).digest(), body))
        if isinstance(answer, RoundError):
            raise _round_problem(answer, request.round, "its outcome was recorded")
        self.metrics.outcomes.inc()
        self.metrics.late.inc(len(request.late))
        return to_json({"fleet": self.store.fleet, "round": request.round, "recorded": True})

    async def _store_item(self, item: NewRound | NewOutcome) -> Any:
        if self._commit is None:
            raise NotReadyError("the service has not started")
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._commit.submit(item)
        except TimeoutError:
            raise StorageUnavailableError("the database does not answer in time") from None

    async def _devices_of(self, number: int) -> frozenset[str]:
        if number not in self._devices:
            stored = await self.read_round(number)
            self._remember(number, frozenset(json.loads(stored.decision)["devices"]))
        return self._devices[number]

    def _remember(self, number: int, devices: frozenset[str]) -> None:
        self._devices[number] = devices
        if len(self._devices) > 64:
            self._devices.popitem(last=False)

    # Operating point and versions

    def describe_operating_point(self) -> dict[str, Any]:
        """Return the operating point and the policy that it selects."""
        active = self._present()
        return {
            "operating_point": active.scheduler.operating_point.document(),
            "policy": active.scheduler.policy.document(),
            "version": str(active.state.version),
        }

    async def set_operating_point(self, body: bytes, by: str) -> dict[str, Any]:
        """Change the operating point for all processes."""
        point = parse(OperatingPointRequest, body).operating_point()
        await self._change(lambda active: self._set_operating_point(active, point, by))
        return self.describe_operating_point()

    def _set_operating_point(self, active: _Active, point: OperatingPoint, by: str) -> None:
        try:
            active.scheduler.choose(point)
        except InputError as error:
            raise ConflictError("operating_point", str(error)) from None
        self.store.set_operating_point(point.document(), by, active.state.revision)

    def describe_front(self) -> dict[str, Any]:
        """Return the policies that an operating point selects from."""
        active = self._present()
        arrays = active.scheduler.policy_file.arrays
        columns = [arrays[f"front.{name}"].tolist() for name in ("preferences", "objectives", "violation_rate")]
        policies = [
            {
                "index": index,
                "preference": dict(zip(OBJECTIVE_LABELS, preference, strict=True)),
                "objectives": dict(zip(OBJECTIVE_KEYS, objectives, strict=True)),
                "violation_rate": violation_rate,
                "within_tolerance": within,
            }
            for index, (preference, objectives, violation_rate, within) in enumerate(
                zip(*columns, arrays["front.within_tolerance"].tolist(), strict=True)
            )
        ]
        return {
            "version": str(active.state.version),
            "policies": policies,
            "active": active.scheduler.policy.index,
        }

    async def list_versions(self) -> dict[str, Any]:
        """Return all versions, newest first."""
        found = await asyncio.to_thread(self.store.list_versions)
        listed = [{**vars(each), "published_at": each.published_at.isoformat()} for each in found]
        return {"active": next((each.version for each in found if each.active), None), "versions": listed}

    async def list_tunings(self, limit: int) -> dict[str, Any]:
        """Return the newest results of background tuning, newest first."""
        found = await asyncio.to_thread(self.store.list_events, "tuning", limit)
        return {"tunings": [{"at": each.at.isoformat(), **each.document} for each in found]}

    async def activate_version(self, version: str, by: str) -> dict[str, Any]:
        """Use a stored version, in all processes. Raises ConflictError if it does not fit the operating point."""
        await self._change(lambda active: self._activate(active, version, by))
        return self._activated()

    async def roll_back(self, by: str) -> dict[str, Any]:
        """Use the version that was active before the present one, in all processes."""
        await self._change(lambda active: self._activate(active, self.store.previous_version(), by))
        return self._activated()

    def _activated(self) -> dict[str, Any]:
        active = self._present()
        return {"active": str(active.state.version), "policy": active.scheduler.policy.document()}

    def _activate(self, active: _Active, version: str, by: str) -> None:
        try:
            policy_file = self._policy_file(version)
        except UnknownVersionError:
            raise NotFoundError("version", "is not stored; see GET /v1/versions") from None
        try:
            Scheduler(policy_file, read_operating_point(active.state.operating_point))
        except InputError as error:
            raise ConflictError("version", f"does not fit the operating point: {error}") from None
        self.store.activate_version(version, by, active.state.revision)

    async def _change(self, change: Any) -> None:
        """Make a change that is checked against the present state, and again if another process was faster."""
        for _ in range(_ATTEMPTS):
            await self.refresh()
            try:
                await asyncio.to_thread(change, self._present())
            except SupersededError:
                continue
            except UnknownVersionError:
                raise ConflictError("version", "has no predecessor to roll back to") from None
            await self.refresh()
            return
        raise NotReadyError("the operating point or the version changes too often")

    # Rounds

    async def list_rounds(self, before: int | None, limit: int) -> dict[str, Any]:
        """Return a page of rounds, newest first."""
        state = await asyncio.to_thread(self.store.read_state)
        found = await asyncio.to_thread(self.store.list_rounds, before, limit)
        return {
            "fleet": self.store.fleet,
            "next_round": min(state.newest_round + 1, MAX_ROUND),
            "rounds": [_summarise(each) for each in found],
            "before": found[-1].round if len(found) == limit else None,
        }

    async def read_round(self, number: int) -> StoredRound:
        """Return a round. Raises NotFoundError."""
        try:
            return await asyncio.to_thread(self.store.read_round, number)
        except UnknownRoundError as error:
            raise _round_problem(error, number) from None

    async def describe_round(self, number: int) -> bytes:
        """Return a round with report, decision and outcome, as JSON."""
        stored = await self.read_round(number)
        fields = to_json(_summarise(stored))
        return b'%s,"report":%s,"decision":%s}' % (fields[:-1], stored.report, stored.decision)

    async def readiness(self) -> tuple[bool, dict[str, str]]:
        """Return whether the service can decide: the database answers and a policy is loaded."""
        database = "ok"
        try:
            async with asyncio.timeout(5):
                await asyncio.to_thread(self.store.ping)
        except (StorageUnavailableError, TimeoutError):
            database = "cannot be reached"
        policy = "ok" if self._active is not None else self._problem
        ready = database == policy == "ok"
        return ready, {"status": "ready" if ready else "not ready", "database": database, "policy": policy}


@lru_cache(maxsize=4096)
def _rule_names(code: int) -> list[str]:
    return ShieldRule(code).codes


@lru_cache(maxsize=4096)
def _rule_sentence(code: int) -> str:
    return ShieldRule(code).sentence


def _summarise(stored: StoredRound) -> dict[str, Any]:
    return {
        "round": stored.round,
        "devices": stored.devices,
        "training": stored.training,
        "version": stored.version,
        "operating_point": stored.operating_point,
        "decided_at": stored.decided_at.isoformat(),
        "outcome": None if stored.outcome is None else _brief(json.loads(stored.outcome)),
    }


def _brief(outcome: dict[str, Any]) -> dict[str, Any]:
    return {name: outcome.get(name) for name in ("duration_s", "energy_j", "accuracy")} | {
        "late": outcome.get("late", [])
    }


def _round_problem(error: Any, number: int, done: str = "it was decided") -> ConflictError:
    if isinstance(error, RoundConflictError):
        return ConflictError("round", f"{number} cannot be used: {done} for another request")
    if isinstance(error, StaleRoundError):
        return ConflictError("round", f"{number} is stale: round {error.newest} was decided; use GET /v1/rounds")
    assert isinstance(error, UnknownRoundError)
    return NotFoundError("round", f"{number} is not stored: it was not decided, or it was pruned")
