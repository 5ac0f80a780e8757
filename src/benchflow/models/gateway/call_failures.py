"""How calls fail, and what is tried again: pure decisions on what a provider answered, or that it did not.

What the provider asks for is done (`Retry-After`, `x-should-retry`, Gemini's `retryDelay`), as long as it is bounded. A
failure that stays is `infrastructure` if the provider or the way to it failed, `agent` if the key, the model or the
request was refused. A refusal by the model, and a conversation that is too long for it, are answers and no failures.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal

from benchflow.errors import AgentFailure, InfrastructureFailure, RuntimeFailure

_TRANSIENT: Final = frozenset({408, 409, 425, 429})
_SERVER_ERROR: Final = 500
_NO_MONEY: Final = re.compile(r"insufficient_quota|billing|credit balance", re.IGNORECASE)
_OVERFLOW: Final = re.compile(
    r"context[_ ](length|window)|prompt is too long|too many tokens|maximum.{0,40}tokens|exceeds the (maximum|limit)",
    re.IGNORECASE,
)
_REFUSAL: Final = re.compile(
    r"content_filter|content_policy|content management policy|safety|usage polic", re.IGNORECASE
)
_DELAY: Final = re.compile(r'"retryDelay"\s*:\s*"([0-9.]+)s"')


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the gateway tries."""

    retries: int = 5
    first_pause_sec: float = 1.0
    longest_pause_sec: float = 60.0
    """A provider that asks for more is not waited for."""
    connect_sec: float = 15.0
    answer_sec: float = 600.0
    """For the next bytes of an answer, the first included."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that failed at last."""

    category: Literal["agent", "infrastructure"]
    code: str
    message: str

    def error(self) -> RuntimeFailure:
        kind = AgentFailure if self.category == "agent" else InfrastructureFailure
        return kind(self.message, code=self.code)


def may_retry(status: int, headers: Mapping[str, str], body: bytes) -> bool:
    """Whether the same request may succeed later."""
    wish = headers.get("x-should-retry", "").lower()
    if wish in ("true", "false"):
        return wish == "true"
    if status == 429 and _NO_MONEY.search(body[:4096].decode(errors="replace")):
        return False
    return status in _TRANSIENT or status >= _SERVER_ERROR


def asked_wait(headers: Mapping[str, str], body: bytes = b"") -> float | None:
    """The seconds that a provider asks to wait; None if it does not."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        text = headers.get(name, "").strip()
        try:
            return max(float(text), 0.0) * unit
        except ValueError:
            continue
    if date := headers.get("retry-after"):
        try:
            return max((parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds(), 0.0)
        except (ValueError, TypeError):
            return None
    found = _DELAY.search(body[:16384].decode(errors="replace"))
    return float(found[1]) if found and found[1].count(".") <= 1 else None


def pause_before(patience: Patience, tries: int, asked: float | None) -> float | None:
    """How long to wait after so many tries; None: give up."""
    if tries > patience.retries or (asked is not None and asked > patience.longest_pause_sec):
        return None
    if asked is not None:
        return asked
    pause: float = min(patience.first_pause_sec * 2.0 ** (tries - 1), patience.longest_pause_sec)
    return pause * random.uniform(0.75, 1.25)  # noqa: S311 - spreads requests


def status_code(status: int) -> str:
    """How a try with this status failed."""
    if status == 429:
        return "rate-limited"
    if status in (408, 504):
        return "model-timeout"
    if status in (401, 403):
        return "key-refused"
    if status == 404:
        return "model-unknown"
    return "model-unreachable" if status >= _SERVER_ERROR or status in _TRANSIENT else "request-refused"


def failure_of(provider: str, model: str | None, status: int, body: bytes) -> CallFailure | None:
    """The failure that an answer with an error status is; None for a refusal and a request that is too long."""
    said = message_of(body)
    too_long = status == 413 or (status in (400, 422) and _OVERFLOW.search(said))
    if too_long or (status in (400, 422) and _REFUSAL.search(body[:4096].decode(errors="replace"))):
        return None
    code = status_code(status)
    what = {
        "rate-limited": "exceeded the rate limit of its provider",
        "model-timeout": "did not answer in time",
        "key-refused": "cannot be used: its provider refused the key",
        "model-unknown": "is unknown to its provider",
        "model-unreachable": "could not be reached",
    }.get(code, "refused the request")
    category: Literal["agent", "infrastructure"] = (
        "infrastructure" if code in ("rate-limited", "model-timeout", "model-unreachable") else "agent"
    )
    return CallFailure(category, code, f"{named(provider, model)} {what} (status {status}): {said}")


def named(provider: str, model: str | None) -> str:
    return f"The model '{model}' of {provider}" if model else f"The provider {provider}"


def message_of(body: bytes) -> str:
    """The message of an error body, on one line."""
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        value = body.decode(errors="replace")
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict):
        error = value.get("error")
        inner = error.get("message") if isinstance(error, dict) else error
        value = inner or value.get("message") or value.get("detail") or value
    text = " ".join(str(value).split())
    return text[:300] or "no reason given"
