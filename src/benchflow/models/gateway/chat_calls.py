"""Calls that LiteLLM translates, by model agents, simulated users and judges, in the same records and limits.

They are made from this process, so they need neither a token nor a socket. What is recorded is the chat request and the
answer as LiteLLM gives it back.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from benchflow.models.gateway.call_failures import CallFailure
from benchflow.models.gateway.call_limits import LimitReached, with_estimates
from benchflow.models.gateway.call_prices import cost_of
from benchflow.models.gateway.grants import Access
from benchflow.models.gateway.wire_answers import read_answer
from benchflow.record.model_calls import CallRetry
from benchflow.record.trajectory import timestamp

ENDPOINT: Final = "litellm.completion"


class CallLimited(Exception):
    """A call that was refused or ended at a limit."""

    def __init__(self, reached: LimitReached) -> None:
        super().__init__(str(reached))
        self.reached = reached


class ChatCall:
    """One call, from its request to its record."""

    def __init__(self, access: Access, model: str, request: Mapping[str, Any]) -> None:
        self._access = access
        self._place = access.place
        self._model = model
        self._request = request
        self._began = time.perf_counter()
        self._time = timestamp()
        self._retries: list[CallRetry] = []
        self._replayed = False
        self._queued: float | None = None
        self._over = False
        self._given_up: dict[str, Any] = {}
        """What is recorded of the use of a call that was ended before its answer."""

    @property
    def costs(self) -> bool:
        """Whether its price must be known: a limit on costs holds for it, and it is not replayed."""
        return self._access.meter.priced and self._access.grant.request.replay is None

    @asynccontextmanager
    async def made(self) -> AsyncIterator[None]:
        """The block makes the call: once it has its place among those at once, and for as long as time is left.

        `CallLimited`, with everything recorded, if a limit is reached before it or in the middle.
        """
        meter = self._access.meter
        self._require_within(meter.reached())
        async with meter.place():
            if meter.queues:
                self._queued = time.perf_counter() - self._began
            self._require_within(meter.begin())
            left = meter.seconds_left()
            try:
                with anyio.move_on_after(left) as limit:
                    yield
                if limit.cancelled_caught and left is not None:
                    reached = meter.out_of_time(max(self._spent, left))
                    self._given_up = self._end_without_answer()
                    self._require_within(reached)
            finally:
                if not self._over:
                    self._given_up = self._end_without_answer()
                    self._record("aborted", None, **self._given_up)

    def _require_within(self, reached: LimitReached | None) -> None:
        if reached is not None:
            self._access.grant.reach(reached)
            self._record("limited", None, code=reached.name, message=str(reached), **self._given_up)
            raise CallLimited(reached)

    def refused(self, failure: CallFailure) -> None:
        """It is not made, whatever its limits; or it was, and should not have been."""
        self._access.grant.ended(self._place, failure)
        if not self._over:
            self._record("refused", None, code=failure.code, message=failure.message)

    def replayed(self) -> bytes | None:
        """The answer of the rollout that is replayed; None if there is no such rollout.

        A `LookupError` if that rollout has no answer to the request.
        """
        book = self._access.grant.request.replay
        if book is None:
            return None
        found = self._access.grant.replayed(self._place, "litellm", ENDPOINT, self._request)
        if found is None:
            raise LookupError(f"The rollout that is replayed ({book.path.name}) has no answer to this request.")
        self._replayed = True
        return found.body()

    def retried(self, code: str, waited: float) -> None:
        """Note a try that failed."""
        self._retries.append(CallRetry(code, None, round(waited, 3)))

    def answered(self, body: bytes, usage: Mapping[str, float], finish_reason: str) -> None:
        spoken = 0 if "output_tokens" in usage else read_answer("litellm", body, stream=False).spoken
        sizes = {"input_tokens": self._size, "output_tokens": spoken}
        used, estimated = with_estimates(usage, sizes)
        self._end({**used, "estimated_calls": 1} if estimated else used)
        self._access.grant.ended(self._place, None)
        self._record("answered", body, usage=used, estimated=estimated, finish_reason=finish_reason)

    def failed(self, failure: CallFailure) -> None:
        self._end({})
        self._access.grant.ended(self._place, failure)
        self._record("failed", None, code=failure.code, message=failure.message)

    def aborted(self) -> None:
        """The provider refused it, and that is no failure."""
        self._end({})
        self._record("aborted", None)

    def _end_without_answer(self) -> dict[str, Any]:
        """Nobody waits for the answer any more: what was sent has to be paid for all the same."""
        if self._replayed or self._retries:
            self._end({})
            return {}
        usage, _ = with_estimates({}, {"input_tokens": self._size})
        cost = cost_of(self._provider, self._model.partition("/")[2] or self._model, usage)
        used = usage if cost is None else {**usage, "cost_usd": cost}
        self._end({**used, "estimated_calls": 1})
        return {"usage": used, "estimated": True}

    @property
    def _size(self) -> int:
        return len(json.dumps(self._request, default=str))

    @property
    def _provider(self) -> str:
        provider, slash, _ = self._model.partition("/")
        return provider if slash else "litellm"

    @property
    def _spent(self) -> float:
        """Seconds that count as time of the model."""
        return time.perf_counter() - self._began - (self._queued or 0.0)

    def _end(self, usage: Mapping[str, float]) -> None:
        self._over = True
        self._access.meter.end(usage, self._spent)

    def _record(self, outcome: str, body: bytes | None, **known: Any) -> None:
        queued = {} if self._queued is None else {"queued": round(self._queued, 6)}
        call: dict[str, Any] = {
            "request": self._request,
            "body": body,
            "time": self._time,
            "place": self._place,
            "dialect": "litellm",
            "provider": self._provider,
            "model": self._model,
            "endpoint": ENDPOINT,
            "outcome": outcome,
            "status": 200 if body is not None else None,
            "content_type": "application/json" if body is not None else None,
            "timing": {**queued, "total": round(time.perf_counter() - self._began, 6)},
            "retries": tuple(self._retries),
            "replayed": self._replayed,
            "usage": {},
        }
        self._access.grant.record({**call, **known})
