"""The outer wall of the viewer: who may ask, and what a browser may do with an answer.

Only `GET` and `HEAD` pass, and only for host names that the viewer was started for: a page of another site whose name
is made to resolve to this machine (DNS rebinding) gets nothing. Every answer carries a policy under which scripts and
styles come from the viewer's own files only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class HttpGuard:
    """Refuses other methods, hosts and sites; adds the headers of safety to every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str] | None) -> None:
        self._app: Final = app
        self._hosts: Final = None if hosts is None else LOOPBACK_NAMES | {host.lower() for host in hosts}
        """None: every name, for a viewer that was asked to listen on all addresses."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refusal = self._refusal(scope["method"], Headers(scope=scope))

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        if method not in ("GET", "HEAD"):
            return PlainTextResponse("The viewer changes nothing: only GET and HEAD.\n", 405, {"Allow": "GET, HEAD"})
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            return PlainTextResponse("The viewer does not answer to this host name.\n", 421)
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not _is_navigation(headers):
            return PlainTextResponse("The viewer does not answer to other sites.\n", 403)
        return None


def _host_name(host: str) -> str:
    """The name of a `Host` header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdecimal() else host).lower()


def _is_navigation(headers: Headers) -> bool:
    """Whether a person follows a link, for which the answer is not given to the other site."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
