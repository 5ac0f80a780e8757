"""Runs a server: ports with their tokens, one announcement, a clean end on a signal, and nothing left behind."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
from starlette.types import ASGIApp

from benchflow.errors import UsageError
from benchflow.serve.server_log import Log, LogHandler
from cube.access import Access, Guard, is_loopback, new_token, read_token
from cube.listening import ENDING, listen, make_server, url_of

MOST_CONNECTIONS: Final = 2048


@dataclass(frozen=True, slots=True)
class Port:
    """A listening socket, and the token that a request must have; None: no token, on loopback only."""

    listener: socket.socket = field(repr=False)
    token: str | None = field(repr=False)

    @property
    def url(self) -> str:
        return url_of(self.listener)


def open_port(host: str, port: int, *, token_file: Path | None = None, no_token: bool = False) -> Port:
    """Listen; port 0 selects a free one. The token is that of the file, else a random one. Raises `UsageError`."""
    if token_file is not None and no_token:
        raise UsageError("--no-token and --token-file exclude each other.")
    try:
        token = None if no_token else new_token() if token_file is None else read_token(token_file)
    except ValueError as error:
        raise UsageError(str(error), code="token") from error
    try:
        listener = listen(host, port)
    except OverflowError as error:
        raise UsageError(f"{port} is not a port: it must be between 0 and 65535.", code="port") from error
    except OSError as error:
        raise UsageError(f"Cannot listen on {host}, port {port}: {error.strerror or error}.", code="port") from error
    if no_token and not is_loopback(listener.getsockname()[0]):
        listener.close()
        raise UsageError(f"--no-token works on loopback only, and {host} is not.", code="token")
    return Port(listener, token)


@dataclass(frozen=True, slots=True)
class Application:
    """What is served on a port."""

    app: ASGIApp
    port: Port
    key_header: str | None = None
    """Another header in which clients of the protocol send a token."""
    websockets: bool = False
    most_connections: int = MOST_CONNECTIONS


def serve(
    applications: Sequence[Application],
    background: Callable[[], AbstractAsyncContextManager[Any]],
    announce: Callable[[], None],
    log: Log,
) -> None:
    """Serve until SIGINT, SIGTERM or SIGHUP; `background` is entered first and left last."""
    handler = LogHandler(log)
    logging.getLogger().addHandler(handler)
    try:
        anyio.run(_serve, applications, background, announce)
    finally:
        logging.getLogger().removeHandler(handler)
        for application in applications:
            application.port.listener.close()


async def _serve(
    applications: Sequence[Application],
    background: Callable[[], AbstractAsyncContextManager[Any]],
    announce: Callable[[], None],
) -> None:
    servers = [
        make_server(
            Guard(each.app, Access(each.port.token, each.key_header), websockets=each.websockets),
            most=each.most_connections,
            lifespan="off",
            log_config=None,
            **({"ws": "auto"} if each.websockets else {}),
        )
        for each in applications
    ]

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, stop)
    async with background():
        announce()
        async with anyio.create_task_group() as running:
            for server, each in zip(servers, applications, strict=True):
                running.start_soon(server.serve, [each.port.listener])
        for number in ENDING:  # closing has begun: a second signal would leave sandboxes behind
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
