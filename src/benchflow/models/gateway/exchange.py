"""One call as far as it is known: who asks, what for, what came back; and its end, where it is counted and recorded."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from benchflow.models.gateway.call_failures import CallFailure
from benchflow.models.gateway.call_limits import with_estimates
from benchflow.models.gateway.call_prices import cost_of
from benchflow.models.gateway.endpoints import Family, Route
from benchflow.models.gateway.grants import Access
from benchflow.models.gateway.wire_answers import Answer, read_answer
from benchflow.record.model_calls import CallOutcome, CallPlace, CallRetry
from benchflow.record.trajectory import timestamp

ERROR: Final = 400
"""The first status of an error."""
_GIVEN_UP: Final = frozenset({"aborted", "limited"})
"""How calls end that were sent on and that nobody waited for."""


@dataclass(slots=True)
class Exchange:
    """A call under way."""

    access: Access
    place: CallPlace
    route: Route
    method: str
    began: float = field(default_factory=time.perf_counter)
    time: str = field(default_factory=timestamp)
    provider: str = ""
    model: str | None = None
    stream: bool = False
    request: Any = None
    content: bytes = b""
    """The request as it is sent on."""
    removed: tuple[str, ...] = ()
    retries: list[CallRetry] = field(default_factory=list)
    timing: dict[str, float] = field(default_factory=dict)
    status: int | None = None
    """The status that the caller got; None as long as nothing went out."""
    content_type: str | None = None
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    last_try: CallFailure | None = None
    """How the last try failed."""
    replayed: bool = False
    held: int = 0
    """Bytes of its request that are in memory."""
    counted: bool = False
    """Whether it was counted when it began."""
    over: bool = False

    def since(self) -> float:
        """Seconds since the call came in."""
        return time.perf_counter() - self.began

    @property
    def spent(self) -> float:
        """Seconds that count as time of the model: those in which it waited for its place do not."""
        return self.since() - self.timing.get("queued", 0.0)

    def begin_answer(self, status: int, content_type: str | None) -> None:
        """The first bytes go out."""
        self.status, self.content_type = status, content_type
        self.timing["first_byte"] = self.since()

    def take(self, piece: bytes) -> None:
        """A piece of the answer goes out."""
        self.pieces.append(piece)
        self.size += len(piece)

    @property
    def family(self) -> Family:
        return self.route.endpoint.family

    @property
    def generates(self) -> bool:
        """Whether it costs tokens."""
        return self.route.endpoint.kind == "generate"

    def end(
        self,
        outcome: CallOutcome,
        failure: CallFailure | None = None,
        said: Answer | None = None,
        *,
        code: str | None = None,
        message: str | None = None,
    ) -> None:
        """Count, note and record the call; only the first end counts."""
        if self.over:
            return
        self.over = True
        self.timing["total"] = self.since()
        grant, body = self.access.grant, b"".join(self.pieces)
        if said is None and body and (self.status or ERROR) < ERROR:
            said = read_answer(self.route.endpoint.dialect, body, stream=self.stream)
        usage, estimated = self._given_up() if outcome in _GIVEN_UP and not body else self._usage(said, body)
        if self.counted:
            grant.meter.end({**usage, "estimated_calls": 1} if estimated else usage, self.spent)
        if self.generates:
            if outcome == "aborted" and self.status is None:
                failure = self.last_try  # the provider had failed already, and nobody waited for it to recover
            if outcome in ("answered", "failed") or failure is not None:
                grant.ended(self.place, failure)
        known = self.known(outcome)
        known["usage"], known["estimated"] = usage, estimated
        known["code"] = code or (failure.code if failure is not None else None)
        known["message"] = message or (failure.message if failure is not None else None)
        known["finish_reason"] = said.finish_reason if said is not None else None
        if self.status is not None:
            known |= {"body": body, "content_type": self.content_type, "pieces": len(self.pieces)}
        grant.record(known)

    def refuse(self, outcome: CallOutcome, status: int, code: str, message: str) -> None:
        """Record a call that was not sent on."""
        if not self.over:
            self.over = True
            told = {"status": status, "usage": {}, "code": code, "message": message}
            self.access.grant.record({**self.known(outcome), **told})

    def known(self, outcome: CallOutcome) -> dict[str, Any]:
        """What is recorded however it ended."""
        return {
            "time": self.time,
            "place": self.place,
            "dialect": self.route.endpoint.dialect,
            "provider": self.provider or self.route.upstream,
            "model": self.model,
            "endpoint": f"{self.method} {self.route.path}",
            "outcome": outcome,
            "status": self.status,
            "timing": {name: round(seconds, 6) for name, seconds in self.timing.items()},
            "stream": self.stream,
            "retries": tuple(self.retries),
            "removed_tools": self.removed,
            "replayed": self.replayed,
            "request": self.request,
        }

    def _given_up(self) -> tuple[dict[str, float], bool]:
        """What a call used that was ended before anything came back: what was sent has to be paid for all the same."""
        if not self.counted or self.replayed or self.last_try is not None:
            return {}, False
        usage, _ = with_estimates({}, {"input_tokens": len(self.content)})
        cost = cost_of(self.provider, self.model, usage)
        return (usage if cost is None else {**usage, "cost_usd": cost}), True

    def _usage(self, said: Answer | None, body: bytes) -> tuple[dict[str, float], bool]:
        """Tokens and cost; where the server does not count, an estimate from sizes, and whether it is one."""
        if not self.generates or not body or (self.status or ERROR) >= ERROR:
            return {}, False
        known, spoken = (said.usage, said.spoken) if said is not None else ({}, 0)
        sizes = {"input_tokens": len(self.content)}
        if self.route.endpoint.dialect not in ("openai-embeddings", "gemini-embed"):  # which write no tokens
            sizes["output_tokens"] = spoken or len(body)
        usage, estimated = with_estimates(known, sizes)
        cost = cost_of(self.provider, self.model, usage)
        return (usage if cost is None else {**usage, "cost_usd": cost}), estimated
