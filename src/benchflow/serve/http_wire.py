"""Small pieces of HTTP for the wires: bodies that are bounded in size and time, JSON, and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benchflow.serve.server_log import Log

MAX_BODY: Final = 16 << 20
BODY_SEC: Final = 60.0
"""How long the body of a request may take to arrive."""
CHUNK: Final = 4096
"""Characters in one event; readers of lines have limits."""
HEARTBEAT_SEC: Final = 10.0
JSON: Final = b"application/json"
EVENTS: Final = b"text/event-stream"
Headers = Mapping[str, str]


class HttpError(Exception):
    """A request that is refused: a status and a sentence."""

    def __init__(
        self, status: int, sentence: str, headers: Headers | None = None, more: Mapping[str, Any] | None = None
    ) -> None:
        """`more` is in the answer beside the sentence."""
        super().__init__(sentence)
        self.status: Final = status
        self.headers: Final = dict(headers or {})
        self.more: Final = dict(more or {})


class Disconnected(Exception):
    """The client is gone."""


def header(scope: Scope, name: bytes) -> str | None:
    """The first value of a header, whose name is in lower case."""
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value).decode("latin-1")
    return None


async def read_body(scope: Scope, receive: Receive, *, most: int = MAX_BODY, seconds: float = BODY_SEC) -> bytes:
    """The whole body; one that is too large or too slow is an `HttpError`, and never held in memory."""
    length = header(scope, b"content-length")
    if length is not None and (not length.isdecimal() or int(length) > most):
        raise HttpError(413, f"The body exceeds the limit of {most} bytes.", {"Connection": "close"})
    body = bytearray()
    with anyio.move_on_after(seconds):
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            body += message.get("body", b"")
            if len(body) > most:
                raise HttpError(413, f"The body exceeds the limit of {most} bytes.", {"Connection": "close"})
            if not message.get("more_body", False):
                return bytes(body)
    raise HttpError(408, f"The body did not arrive within {seconds:g} s.", {"Connection": "close"})


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a body; an empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"The body is not JSON: {str(error)[:200]}.") from error
    if not isinstance(value, dict):
        raise HttpError(422, "The body must be a JSON object.")
    return value


def dumped(value: Any) -> bytes:
    """Compact JSON in ASCII, without values that JSON does not have."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


async def send_bytes(
    send: Send, body: bytes, *, status: int = 200, kind: bytes = JSON, headers: Headers | None = None
) -> None:
    """A whole response."""
    await send({"type": "http.response.start", "status": status, "headers": _head(kind, headers, len(body))})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, value: Any, *, status: int = 200, headers: Headers | None = None) -> None:
    await send_bytes(send, dumped(value), status=status, headers=headers)


async def send_error(send: Send, error: HttpError) -> None:
    """The sentence as `detail`, which clients show."""
    await send_json(send, {"detail": str(error), **error.more}, status=error.status, headers=error.headers)


def answering(answer: ASGIApp, told: Callable[[Exception], HttpError | None], log: Log) -> ASGIApp:
    """The application of a wire: what `answer` raises becomes a response, and what nobody expected a line of the log.

    `told` makes a response of the wire's own errors.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        began = False

        async def sent(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await answer(scope, receive, sent)
        except Disconnected:
            return
        except Exception as error:  # the boundary: one request fails, the server continues
            known = error if isinstance(error, HttpError) else told(error)
            if known is None:
                log("request_failed", path=scope["path"], error=f"{type(error).__name__}: {error}")
                known = HttpError(500, "The server failed; its log says why.")
            if began:
                raise  # the connection is closed, which is all that can be said in the middle of an answer
            await send_error(send, known)

    return app


def _head(kind: bytes, headers: Headers | None, length: int | None) -> list[tuple[bytes, bytes]]:
    head = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    if length is not None:
        head.append((b"content-length", str(length).encode()))
    return head + [(name.lower().encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]


def event(name: str, data: str) -> bytes:
    """One server-sent event; its data has no line breaks."""
    return f"event: {name}\ndata: {data}\n\n".encode()


def chunked_events(text: str) -> bytes:
    """A JSON text as `chunk` events and an `end`.

    Clients remove white space at the start of data. Compact JSON has it in strings only, where it can be escaped.
    """
    pieces = [text[start : start + CHUNK] for start in range(0, len(text), CHUNK)] or [""]
    safe = [f"\\u0020{piece[1:]}" if piece.startswith(" ") else piece for piece in pieces]
    return b"".join(event("end" if piece is safe[-1] else "chunk", piece) for piece in safe)


async def send_events(send: Send, events: Iterable[bytes]) -> None:
    """A stream of events that are all known."""
    await send({"type": "http.response.start", "status": 200, "headers": _head(EVENTS, None, None)})
    await send({"type": "http.response.body", "body": b"".join(events)})


async def stream_when_done(receive: Receive, send: Send, first: bytes, done: anyio.Event) -> bool:
    """Begin a stream with `first` and keep it alive until `done`; False if the client is gone before."""
    await send({"type": "http.response.start", "status": 200, "headers": _head(EVENTS, None, None)})
    await send({"type": "http.response.body", "body": first, "more_body": True})
    while not done.is_set():
        with anyio.move_on_after(HEARTBEAT_SEC):
            await done.wait()
            break
        with anyio.move_on_after(0.01):
            if (await receive())["type"] == "http.disconnect":
                return False
        await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})
    return True
