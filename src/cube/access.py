"""Access to the ports of a server: tokens, checks of headers, traffic. Needs the extra `serve`.

A web page must never reach a server through the browser of someone who runs one: a request with an `Origin` is refused,
and without a token, so is one whose `Host` is not this machine's loopback (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import anyio
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

GONE_SEC: Final = 2.0
"""How long a refused WebSocket may take to close."""
MAX_TOKEN: Final = 4096
"""Maximum bytes of a token file."""


def new_token() -> str:
    """A token that cannot be guessed."""
    return secrets.token_urlsafe(32)


def read_token(path: Path) -> str:
    """The token in a file, without the white space around it; a `ValueError` says what is wrong with it."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_TOKEN + 1)
    except OSError as error:
        raise ValueError(f"The token file {path} cannot be read: {error.strerror or error}.") from error
    token = text.decode("ascii", errors="replace").strip()
    if len(text) > MAX_TOKEN or not token or not all("!" <= character <= "~" for character in token):
        raise ValueError(f"The token file {path} must contain one token: visible ASCII characters, no spaces.")
    return token


def is_loopback(address: str) -> bool:
    """Whether an address is one that only this machine can reach."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Access:
    """What a request must have: the token, or without one a host that is loopback."""

    token: str | None = field(repr=False)
    key_header: str | None = None
    """Another header in which a client may send the bare token."""

    def refusal(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """The status and the sentence with which a request is refused; None if it is let in."""
        listed = [(name.lower(), value) for name, value in headers]
        if any(name == b"origin" for name, _ in listed):
            return 403, "Requests from web pages are not allowed."
        if self.token is None:
            hosts = [value for name, value in listed if name == b"host"]
            return None if len(hosts) == 1 and _is_this_machine(hosts[0]) else (421, "The host must be loopback.")
        given = [_as_bearer(value) for name, value in listed if name == b"authorization"]
        if self.key_header is not None and not given:
            given = [b"bearer " + value for name, value in listed if name == self.key_header.encode()]
        if len(given) == 1 and hmac.compare_digest(given[0], b"bearer " + self.token.encode()):
            return None
        return 401, "A valid token is required: Authorization: Bearer TOKEN."


def _as_bearer(value: bytes) -> bytes:
    """`bearer TOKEN`. The password of a URL is a token too: many a client can send it in no other way."""
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() != b"basic":
        return scheme.lower() + b" " + rest
    try:
        return b"bearer " + base64.b64decode(rest, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


@lru_cache(maxsize=64)
def _is_this_machine(host: bytes) -> bool:
    name = host.decode("latin-1").strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    return name == "localhost" or is_loopback(name)


class Guard:
    """An ASGI application behind its access check; it takes plain HTTP, and WebSockets where they are served."""

    def __init__(self, app: ASGIApp, access: Access, *, websockets: bool = False) -> None:
        self._app: Final = app
        self._access: Final = access
        self._kinds: Final = ("http", "websocket") if websockets else ("http",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in self._kinds:
            refusal = self._access.refusal(scope["headers"])
            if refusal is not None:
                await _refuse(scope, receive, send, *refusal)
                return
        elif scope["type"] != "lifespan":
            raise ValueError(f"A connection of type {scope['type']} is not served.")
        await self._app(scope, receive, send)


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    await PlainTextResponse(f"{sentence}\n", status, headers=headers)(scope, receive, send)
    if scope["type"] == "websocket":
        # Uvicorn complains of an application that returns before such a connection is gone: that is the third event.
        with anyio.move_on_after(GONE_SEC):
            for _ in range(3):
                await receive()


class Traffic:
    """Whether anybody uses a server: requests that were let in and are being answered, and when the last one ended."""

    def __init__(self) -> None:
        self._open = 0
        self._last = time.monotonic()

    def watched(self, app: ASGIApp) -> ASGIApp:
        """The application, with its requests counted."""

        async def watch(scope: Scope, receive: Receive, send: Send) -> None:
            counted = scope["type"] == "http"
            self._open += counted
            try:
                await app(scope, receive, send)
            finally:
                self._open -= counted
                self._last = time.monotonic()

        return watch

    async def wait_until_idle(self, seconds: float, stop: Callable[[], None]) -> None:
        """Call `stop` once nobody has asked for anything for that long."""
        while self._open or time.monotonic() - self._last < seconds:  # noqa: ASYNC110 - time has no event
            await anyio.sleep(min(seconds / 4, 30))
        stop()
