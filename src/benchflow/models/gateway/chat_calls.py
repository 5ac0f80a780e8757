"""Calls that LiteLLM translates, by model agents, simulated users and judges, in the same records and limits.

They are made from this process, so they need neither a token nor a socket. What is recorded is the chat request and the
answer as LiteLLM gives it back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

from benchflow.models.gateway.call_failures import CallFailure
from benchflow.models.gateway.call_limits import LimitReached, with_estimates
from benchflow.models.gateway.grants import Access
from benchflow.models.gateway.wire_answers import read_answer
from benchflow.record.model_calls import CallRetry
from benchflow.record.trajectory import timestamp

ENDPOINT: Final = "litellm.completion"


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

    def begin(self) -> LimitReached | None:
        """Count the call; the limit that is reached, if one is: then it is not made."""
        grant = self._access.grant
        reached = self._access.meter.begin()
        if reached is not None:
            grant.reach(reached)
            self._record("limited", None, code=reached.name, message=str(reached))
        return reached

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
        sizes = {"input_tokens": len(json.dumps(self._request, default=str)), "output_tokens": spoken}
        used, estimated = with_estimates(usage, sizes)
        self._end({**used, "estimated_calls": 1} if estimated else used)
        self._access.grant.ended(self._place, None)
        self._record("answered", body, usage=used, estimated=estimated, finish_reason=finish_reason)

    def failed(self, failure: CallFailure) -> None:
        self._end({})
        self._access.grant.ended(self._place, failure)
        self._record("failed", None, code=failure.code, message=failure.message)

    def aborted(self) -> None:
        """Nobody waits for the answer any more."""
        self._end({})
        self._record("aborted", None)

    def _end(self, usage: Mapping[str, float]) -> None:
        self._access.meter.end(usage, time.perf_counter() - self._began)

    def _record(self, outcome: str, body: bytes | None, **known: Any) -> None:
        provider, slash, _ = self._model.partition("/")
        call: dict[str, Any] = {
            "request": self._request,
            "body": body,
            "time": self._time,
            "place": self._place,
            "dialect": "litellm",
            "provider": provider if slash else "litellm",
            "model": self._model,
            "endpoint": ENDPOINT,
            "outcome": outcome,
            "status": 200 if body is not None else None,
            "content_type": "application/json" if body is not None else None,
            "timing": {"total": round(time.perf_counter() - self._began, 6)},
            "retries": tuple(self._retries),
            "replayed": self._replayed,
            "usage": {},
        }
        self._access.grant.record({**call, **known})
