"""The wire of each dialect, as far as the gateway must know it: endpoints, tokens of callers, errors. Pure.

The first part of a path names an upstream, the rest is what that upstream's dialect calls it; anything else is refused,
so a request reaches nothing but these endpoints. The gateway translates nothing: an error that it makes itself is
written as the dialect's own servers write theirs, so that the clients of that dialect understand it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import parse_qsl, urlencode

from benchflow.record.model_calls import Dialect

Family = Literal["openai", "anthropic", "gemini"]
"""Dialects that one server speaks together, with one way to show a key."""
Kind = Literal["generate", "count", "list"]
"""`generate` costs tokens; `count` and `list` ask about tokens and models."""

_MODEL: Final = r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]{0,127})"
_TOKEN_QUERY: Final = ("key", "access_token")
_PASSED_QUERY: Final = frozenset(
    {"alt", "beta", "limit", "pageSize", "pageToken", "after_id", "before_id", "api-version"}
)
_PASSED_HEADERS: Final = frozenset(
    {
        "accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-beta", "originator",
        "http-referer", "x-title", "x-app", "x-client-request-id", "x-goog-api-client", "session_id", "conversation_id",
    }
)  # fmt: skip
_PASSED_PREFIXES: Final = ("x-stainless-", "x-codex-")
_RETURNED_HEADERS: Final = frozenset(
    {"content-type", "retry-after", "retry-after-ms", "request-id", "x-request-id", "x-should-retry", "openai-version"}
)
_RETURNED_PREFIXES: Final = ("x-ratelimit-", "anthropic-ratelimit-", "openai-processing-")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One thing that servers of a family do."""

    family: Family
    dialect: Dialect
    kind: Kind
    method: str
    pattern: re.Pattern[str]
    """Of the path below the name of the upstream."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where a request goes."""

    upstream: str
    endpoint: Endpoint
    path: str
    """Below the base URL of the upstream."""
    model: str | None = None
    """The model, where the path names it."""


def _endpoint(family: Family, dialect: Dialect, kind: Kind, method: str, pattern: str) -> Endpoint:
    return Endpoint(family, dialect, kind, method, re.compile(pattern))


ENDPOINTS: Final = (
    _endpoint("openai", "openai-chat", "generate", "POST", r"/v1(?P<path>/chat/completions)"),
    _endpoint("openai", "openai-responses", "generate", "POST", r"/v1(?P<path>/responses)"),
    _endpoint("openai", "openai-count", "count", "POST", r"/v1(?P<path>/responses/input_tokens)"),
    _endpoint("openai", "openai-completions", "generate", "POST", r"/v1(?P<path>/completions)"),
    _endpoint("openai", "openai-embeddings", "generate", "POST", r"/v1(?P<path>/embeddings)"),
    _endpoint("openai", "models", "list", "GET", r"/v1(?P<path>/models(/[A-Za-z0-9][A-Za-z0-9._:/-]{0,127})?)"),
    _endpoint("anthropic", "anthropic-messages", "generate", "POST", r"(?P<path>/v1/messages)"),
    _endpoint("anthropic", "anthropic-count", "count", "POST", r"(?P<path>/v1/messages/count_tokens)"),
    _endpoint("anthropic", "models", "list", "GET", rf"(?P<path>/v1/models(/{_MODEL})?)"),
    _endpoint(
        "gemini", "gemini-generate", "generate", "POST", rf"(?P<path>/v1(beta)?/models/{_MODEL}:generateContent)"
    ),
    _endpoint(
        "gemini", "gemini-stream", "generate", "POST", rf"(?P<path>/v1(beta)?/models/{_MODEL}:streamGenerateContent)"
    ),
    _endpoint("gemini", "gemini-count", "count", "POST", rf"(?P<path>/v1(beta)?/models/{_MODEL}:countTokens)"),
    _endpoint(
        "gemini", "gemini-embed", "generate", "POST", rf"(?P<path>/v1(beta)?/models/{_MODEL}:(batchE|e)mbedContents?)"
    ),
    _endpoint("gemini", "models", "list", "GET", rf"(?P<path>/v1(beta)?/models(/{_MODEL})?)"),
)
_NAMED: Final = re.compile(r"/(?P<upstream>[a-z0-9][a-z0-9-]{0,63})(?P<rest>/.*)?")


def base_path(upstream: str, family: Family) -> str:
    """The path of the base URL that clients of a family are given."""
    return f"/{upstream}/v1" if family == "openai" else f"/{upstream}"


def named_upstream(path: str) -> str | None:
    """The upstream that a path names, whatever follows."""
    found = _NAMED.fullmatch(path)
    return found["upstream"] if found is not None else None


def route(method: str, path: str, families: Mapping[str, Family]) -> Route | None:
    """Where a request with this undecoded path goes; None if there is nothing."""
    found = _NAMED.fullmatch(path)
    if found is None or found["upstream"] not in families:
        return None
    family, rest = families[found["upstream"]], found["rest"] or ""
    for endpoint in ENDPOINTS:
        if endpoint.family == family and endpoint.method == method and (match := endpoint.pattern.fullmatch(rest)):
            return Route(found["upstream"], endpoint, match["path"], match.groupdict().get("model"))
    return None


def shown_tokens(headers: Iterable[tuple[bytes, bytes]], query: str) -> list[str]:
    """Every token that a request shows, wherever a dialect may put it."""
    shown: list[str] = []
    for name, value in headers:
        text = value.decode("latin-1").strip()
        if name == b"authorization":
            scheme, _, rest = text.partition(" ")
            shown.append(rest.strip() if scheme.lower() == "bearer" else text)
        elif name in (b"x-api-key", b"x-goog-api-key", b"api-key"):
            shown.append(text)
    shown += [value for name, value in parse_qsl(query) if name in _TOKEN_QUERY]
    return [token for token in shown if token]


def passed_query(query: str) -> str:
    """The query as it is sent on: what endpoints take, never a token."""
    return urlencode([(name, value) for name, value in parse_qsl(query, max_num_fields=50) if name in _PASSED_QUERY])


def passed_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The headers that are sent on. Those that choose an account, a host or a framing are the operator's."""
    passed: dict[str, str] = {}
    for raw, value in headers:
        name = raw.decode("latin-1").lower()
        if name in _PASSED_HEADERS or name.startswith(_PASSED_PREFIXES):
            text = value.decode("latin-1")
            passed[name] = f"{passed[name]}, {text}" if name in passed else text
    return passed


def returned_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that the caller gets."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in headers
        if name.lower() in _RETURNED_HEADERS or name.lower().startswith(_RETURNED_PREFIXES)
    ]


_OPENAI_TYPES: Final = {400: "invalid_request_error", 401: "invalid_request_error", 404: "invalid_request_error"}
_ANTHROPIC_TYPES: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_GEMINI_STATES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    502: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def error_body(family: Family, status: int, code: str, message: str) -> bytes:
    """An error as servers of the family write it."""
    found: dict[str, Any]
    if family == "anthropic":
        found = {"type": "error", "error": {"type": _ANTHROPIC_TYPES.get(status, "api_error"), "message": message}}
    elif family == "gemini":
        state = _GEMINI_STATES.get(status, "INTERNAL")
        found = {"error": {"code": status, "message": message, "status": state}}
    else:
        kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "permission_error")
        found = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return json.dumps(found).encode()


def error_event(family: Family, code: str, message: str) -> bytes:
    """The same in the middle of a stream, where there is no status any more."""
    body = error_body(family, 502, code, message)
    return b"event: error\ndata: " + body + b"\n\n" if family == "anthropic" else b"data: " + body + b"\n\n"
