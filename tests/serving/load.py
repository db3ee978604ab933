"""Clients that keep asking a service for decisions, and remember what it acknowledged."""

import threading
import time
from collections import Counter, defaultdict

import httpx
from servers import JSON, body_of, report_document

from tandem.serving.storage import Store


class Load:
    """Threads that decide one round after the other, and repeat a request until it is answered.

    Every round is asked for by two threads with the same body, as a client does that did not get its answer.
    """

    def __init__(self, urls: list[str], threads: int = 4) -> None:
        self._urls = urls
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        self.answers: dict[int, set[bytes]] = defaultdict(set)
        self.statuses: Counter[int] = Counter()
        self.failures = 0  # broken connections
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(threads)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    @property
    def acknowledged(self) -> int:
        return len(self.answers)

    def wait_for_more(self, count: int = 1, timeout_s: float = 30) -> None:
        """Wait until more rounds were acknowledged."""
        target = self.acknowledged + count
        deadline = time.monotonic() + timeout_s
        while self.acknowledged < target:
            assert time.monotonic() < deadline, f"no answers: {self.statuses}"
            time.sleep(0.005)

    def _run(self, worker: int) -> None:
        client = httpx.Client(timeout=20, headers=JSON)
        turn = worker
        while not self._stop.is_set():
            with self._lock:
                number = self._next // 2
                self._next += 1
            body = body_of(report_document(number))
            while not self._stop.is_set():
                turn += 1
                try:
                    response = client.post(f"{self._urls[turn % len(self._urls)]}/v1/decisions", content=body)
                except httpx.TransportError:
                    with self._lock:
                        self.failures += 1
                    time.sleep(0.02)
                    continue
                with self._lock:
                    self.statuses[response.status_code] += 1
                    if response.status_code == 200:
                        self.answers[number].add(response.content)
                if response.status_code == 200:
                    break
                time.sleep(0.02)
        client.close()

    def check(self, store: Store) -> None:
        """Every acknowledged round is stored as acknowledged, and was never answered differently."""
        assert self.acknowledged > 0
        different = {number for number, answers in self.answers.items() if len(answers) != 1}
        assert not different
        stored = {each.round: each.decision for each in store.read_rounds(limit=1_000_000)}
        lost = [number for number, answers in self.answers.items() if stored.get(number) not in answers]
        assert not lost
        assert set(self.statuses) <= {200, 503}, self.statuses
