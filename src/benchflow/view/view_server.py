"""Runs the viewer: one socket, loopback unless another host is asked for, until a signal ends it."""

from __future__ import annotations

import errno
import ipaddress
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from benchflow.errors import UsageError
from benchflow.view.page_rendering import compile_templates

DEFAULT_PORT: Final = 8282
BACKLOG: Final = 64
_ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 selects a free one. An address that cannot be used is a `UsageError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OverflowError as error:
        raise UsageError(f"{port} is not a port: it must be between 0 and 65535.", code="port") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"Port {port} of {host} is in use; choose another with --port, or 0 for any free one."
            raise UsageError(message, code="port-in-use") from error
        raise UsageError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.", code="port") from error


def url_of(listener: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def host_names(host: str) -> tuple[str, ...] | None:
    """The names that the viewer answers to besides loopback; None: every name, if it listens on all addresses."""
    try:
        if ipaddress.ip_address(host).is_unspecified:
            return None
    except ValueError:
        pass
    return (f"[{host}]" if ":" in host else host,)


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        proxy_headers=False,
        server_header=False,
        lifespan="off",
    )
    Thread(target=compile_templates, daemon=True).start()
    _Server(config).run([listener])


class _Server(uvicorn.Server):
    """A server for which a signal is the way to end, not a failure: uvicorn's own would raise it again."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
