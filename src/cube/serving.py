"""Runs a server with two ports: JSON-RPC for the harness, MCP for the agent.

They are two applications on two sockets with two tokens: nothing that is sent to one can reach the other. As a program,
`python -m cube.serving HOST PORT AGENT_PORT` is the server's side of `cube.server_process`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Final, TextIO, cast

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from cube.access import Access, Guard, Traffic, is_loopback, new_token
from cube.later import Later
from cube.listening import ENDING, listen, make_server, url_of
from cube.server import Served, harness_app, served_for
from cube.server_process import Address
from cube.stage import AGENT_PATH, AgentSide

logger = logging.getLogger(__name__)

CLOSE_SEC: Final = 10.0
"""How long closing may take before the process ends all the same."""
HARNESS_CONNECTIONS: Final = 4096
"""An agent that opens ever more connections must not use up the descriptors that the harness needs."""


@dataclass(frozen=True, slots=True)
class Doors:
    """The two listening sockets and their tokens; None: no token."""

    harness: socket.socket
    agent: socket.socket
    token: str | None = field(repr=False)
    agent_token: str | None = field(repr=False)
    path: str = field(default="/", repr=False)
    """The path of JSON-RPC. Without a token it cannot be guessed, so that a local agent cannot find it."""

    @property
    def address(self) -> Address:
        path = self.path.removesuffix("/")
        agent_url = f"{url_of(self.agent)}{AGENT_PATH}"
        return Address(f"{url_of(self.harness)}{path}", self.token, agent_url, self.agent_token)

    @property
    def on_loopback(self) -> bool:
        return all(is_loopback(door.getsockname()[0]) for door in (self.harness, self.agent))

    def close(self) -> None:
        self.harness.close()
        self.agent.close()


def open_doors(host: str, port: int, agent_port: int, *, token: str | None, agent_token: str | None) -> Doors:
    """Listen on both ports; port 0 selects a free one."""
    harness = listen(host, port)
    try:
        agent = listen(host, agent_port)
    except BaseException:
        harness.close()
        raise
    return Doors(harness, agent, token, agent_token, "/" if token is not None else f"/{new_token()}")


def main() -> int:
    """Serve the job on standard input until that closes."""
    host, port, agent_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    leash, answer = _private_streams()
    try:
        job = json.loads(leash.readline())
        doors = open_doors(host, port, agent_port, token=new_token(), agent_token=new_token())
        served = served_for(job)
    except Exception as error:  # noqa: BLE001  # reported to the parent process, in one line
        answer.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        answer.flush()
        return 1

    def announce(address: Address) -> None:
        answer.write(f"{json.dumps(asdict(address))}\n")
        answer.flush()

    serve(served, doors, announce, leash=leash, idle_sec=job.get("idle_sec"))
    return 0


def _private_streams() -> tuple[TextIO, TextIO]:
    """The pipes to the parent process, out of reach of the code that is served.

    From here on, output of a task goes to standard error and its child processes get an empty standard input. They can
    neither mix with the reply, nor fill a pipe that nobody reads, nor close the pipe that keeps the server alive.
    """
    leash, answer = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return leash, answer


def serve(
    served: Served,
    doors: Doors,
    announce: Callable[[Address], None],
    *,
    leash: TextIO | None = None,
    idle_sec: float | None = None,
) -> None:
    """Serve until a signal arrives, `leash` closes or nobody asks for anything for `idle_sec`.

    Then close what is served, even if an action never ends.
    """
    try:
        anyio.run(_serve, served, doors, announce, leash, idle_sec)
    finally:
        for number in ENDING:  # closing has a limit of its own; a second signal would leave sandboxes behind
            signal.signal(number, signal.SIG_IGN)
        doors.close()
        _close(served)


async def _serve(
    served: Served,
    doors: Doors,
    announce: Callable[[Address], None],
    leash: TextIO | None,
    idle_sec: float | None,
) -> None:
    agents = Later(partial(_make_agent_app, served))
    traffic = Traffic()
    servers = [
        make_server(
            Guard(traffic.watched(_waking(harness_app(served.methods, doors.path), agents)), Access(doors.token)),
            most=HARNESS_CONNECTIONS,
        ),
        make_server(Guard(traffic.watched(agents), Access(doors.agent_token))),
    ]

    def stop() -> None:
        for server in servers:
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for number in ENDING:
        loop.add_signal_handler(number, stop)
    if leash is not None:
        threading.Thread(target=_hold, args=(leash, loop, stop), daemon=True).start()
    announce(doors.address)
    if leash is None:  # a server of its own; of those that are spawned by the dozen, each waits until it is used
        agents.wake()
    async with anyio.create_task_group() as waiting:
        if idle_sec is not None:
            waiting.start_soon(traffic.wait_until_idle, idle_sec, stop)
        async with anyio.create_task_group() as running:
            for server, listener in zip(servers, (doors.harness, doors.agent), strict=True):
                running.start_soon(server.serve, [listener])
        waiting.cancel_scope.cancel()


def _waking(app: ASGIApp, agents: Later) -> ASGIApp:
    """The harness's application; where a harness begins, an agent will follow."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            agents.wake()
        await app(scope, receive, send)

    return answer


async def _make_agent_app(served: Served) -> Starlette:
    """The application of the agent's port, whose instructions follow the episode."""
    mcp_tools = await anyio.to_thread.run_sync(importlib.import_module, "cube.mcp_tools")
    agent = AgentSide(served.stage)
    app, mcp = mcp_tools.agent_app(served.name, agent)

    def refresh() -> None:
        mcp.instructions = agent.instructions()

    served.stage.on_change = refresh
    refresh()  # a reset may have come in between
    return cast("Starlette", app)


def _hold(leash: TextIO, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
    leash.read()
    with suppress(RuntimeError):  # the loop is closed: the server is ending already
        loop.call_soon_threadsafe(stop)


def _close(served: Served) -> None:
    """Close within the limit; what does not end by then ends with the process."""

    def close() -> None:
        try:
            served.close()
        except Exception:  # the task's own code; there is nobody left to report to
            logger.exception("Closing '%s' failed", served.name)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(CLOSE_SEC)


if __name__ == "__main__":
    sys.exit(main())
