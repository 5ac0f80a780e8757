"""The log of every attempt to leave a sandbox: who was asked for, and what became of it.

Limited: the newest attempts are kept, older ones are counted, and a sink sees them
all.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from benchflow.sandbox.network.host_rules import as_address
from benchflow.sandbox.protocol import FailedRequest

Channel = Literal["proxy", "connect", "tls", "http", "raw", "dns"]
Verdict = Literal["allowed", "refused", "failed"]

_MAX_TEXT: Final = 300
_PATIENCE_SEC: Final = 1.0
"""How long a request waits before it counts as one without an answer: the end of a connection waits for none."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt. `failed` is an allowed one that the outside world did not answer."""

    time: str
    """ISO 8601, UTC."""
    channel: Channel
    """How it came: a request to the proxy, a CONNECT, or without the proxy as TLS, HTTP, any other protocol
    or a name query.
    """
    host: str
    """In normal form where it has one, else as the sandbox wrote it, shortened."""
    port: int | None
    """None for name queries."""
    verdict: Verdict
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def unreached(
    attempts: Iterable[Attempt], silent: Collection[tuple[str, int | None]] = (), *, numeric: bool = False
) -> tuple[FailedRequest, ...]:
    """The hosts whose newest attempt was refused or failed, each with its port; None where only the name was asked for.

    So are those that are `silent`, by host and port: they were asked for something and did not answer. Names without a
    domain and, unless `numeric`, refused addresses without a name are left out: programs look for their own machine by
    the one and for that of a cloud by the other, and download from neither.
    """
    newest = {(attempt.host, attempt.port): attempt for attempt in attempts if "." in attempt.host}
    failed = {
        place: FailedRequest(attempt.host, attempt.port, attempt.reason or attempt.verdict)
        for place, attempt in newest.items()
        if attempt.verdict == "failed"
        or (attempt.verdict == "refused" and (numeric or as_address(attempt.host) is None))
    }
    quiet = {(host, port): FailedRequest(host, port, "no answer") for host, port in silent if "." in host}
    return tuple((quiet | failed).values())


class AuditLog:
    """The attempts of one sandbox under one policy."""

    def __init__(self, on_attempt: Callable[[Attempt], None] | None = None, *, keep: int = 10_000) -> None:
        self._kept: deque[Attempt] = deque(maxlen=keep)
        self._on_attempt = on_attempt
        self._total = 0
        self._waiting: dict[object, tuple[str, int | None, float]] = {}
        """What each connection waits for, and since when."""
        self._silent: set[tuple[str, int | None]] = set()

    def record(self, channel: Channel, host: str, port: int | None, verdict: Verdict, reason: str = "") -> None:
        """Add an attempt and pass it on."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        attempt = Attempt(now, channel, host[:_MAX_TEXT], port, verdict, reason[:_MAX_TEXT])
        self._total += 1
        self._kept.append(attempt)
        if self._on_attempt is not None:
            self._on_attempt(attempt)

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The newest ones, oldest first."""
        return tuple(self._kept)

    @property
    def dropped(self) -> int:
        """How many older ones are no longer kept."""
        return self._total - len(self._kept)

    def asked(self, connection: object, host: str, port: int | None) -> None:
        """A connection waits for an answer from now on."""
        self._waiting[connection] = host[:_MAX_TEXT], port, time.monotonic()

    def answered(self, connection: object) -> None:
        """The other side sent something, or ended."""
        found = self._waiting.pop(connection, None)
        if found is not None:
            self._silent.discard(found[:2])

    def given_up(self, connection: object) -> None:
        """A connection ends that may still wait."""
        found = self._waiting.pop(connection, None)
        if found is not None and time.monotonic() - found[2] >= _PATIENCE_SEC:
            self._silent.add(found[:2])

    @property
    def silent(self) -> frozenset[tuple[str, int | None]]:
        """Hosts and ports that were asked and have not answered, for longer than a farewell takes."""
        late = time.monotonic() - _PATIENCE_SEC
        return frozenset(
            {*self._silent, *((host, port) for host, port, since in self._waiting.values() if since <= late)}
        )
