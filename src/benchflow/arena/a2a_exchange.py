"""One request to a peer and what comes back: bounded in bytes, events and time; every failure is a `PeerFailure`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio
import httpx

from benchflow.arena.a2a_cards import Route
from benchflow.arena.a2a_dialects import Malformed, read_events
from benchflow.arena.a2a_types import ArtifactEvent, Event, MessageEvent, PeerFailure, PeerProblem
from benchflow.files.strict_json import StrictJSONError, parse_json


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """What one answer of a peer may be."""

    max_bytes: int = 16 << 20
    """Of the whole answer, all of its events together."""
    max_events: int = 10_000


class Exchange:
    """One request and what comes back: its time, its bytes, and its failures as sentences."""

    def __init__(self, url: str, limits: PeerLimits, deadline: float) -> None:
        self._url: Final = url
        self._limits: Final = limits
        self._deadline: Final = deadline
        self._began: Final = anyio.current_time()
        self._bytes = 0
        self._count = 0
        self.task_id: str | None = None
        self.artifacts: set[str] = set()
        """The artifacts that were seen."""

    def failure(self, problem: PeerProblem, clause: str) -> PeerFailure:
        return PeerFailure(problem, f"The peer at {self._url} {clause}.")

    @contextmanager
    def time(self) -> Iterator[None]:
        """Limits what is inside to the time that is left."""
        try:
            with anyio.fail_after(max(0.0, self._deadline - anyio.current_time())):
                yield
        except TimeoutError as error:
            limit = self._deadline - self._began
            raise self.failure("silent", f"did not answer within its limit of {limit:g} s") from error

    @contextmanager
    def guarded(self) -> Iterator[None]:
        try:
            yield
        except httpx.ConnectError as error:
            raise self.failure("unreachable", f"cannot be reached: {str(error).rstrip('.')}") from error
        except httpx.TimeoutException as error:
            raise self.failure("unreachable", "cannot be reached: the connection timed out") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")[:300]
            raise self.failure("unreachable", f"broke the connection: {said}") from error

    def require_success(self, answer: httpx.Response) -> None:
        if answer.is_redirect:
            raise self.failure("protocol", "redirects to another address, which is not followed")
        if not answer.is_success:
            raise self.failure("refused", f"answered with status {answer.status_code}")

    async def chunks(self, answer: httpx.Response) -> AsyncGenerator[bytes]:
        """The bytes of an answer as they come, bounded in number and time."""
        source = answer.aiter_raw()
        while True:
            with self.time():
                chunk = await anext(source, None)
            if chunk is None:
                return
            self._bytes += len(chunk)
            if self._bytes > self._limits.max_bytes:
                raise self.failure("flood", f"sent more than {self._limits.max_bytes} bytes")
            yield chunk

    async def read(self, answer: httpx.Response) -> bytes:
        async with aclosing(self.chunks(answer)) as chunks:
            return b"".join([chunk async for chunk in chunks])

    async def sent_events(self, answer: httpx.Response) -> AsyncGenerator[bytes]:
        """The data of server-sent events."""
        pending, data = list[bytes](), list[bytes]()
        async with aclosing(self.chunks(answer)) as chunks:
            async for chunk in chunks:
                pending.append(chunk)
                if b"\n" not in chunk:
                    continue
                *lines, rest = b"".join(pending).split(b"\n")
                pending = [rest]
                for line in lines:
                    line = line.removesuffix(b"\r")  # noqa: PLW2901 - the line as it is meant
                    if line.startswith(b"data:"):
                        data.append(line[5:].removeprefix(b" "))
                    elif not line and data:
                        yield b"\n".join(data)
                        data.clear()
        if data:
            yield b"\n".join(data)

    def json(self, text: bytes) -> Any:
        try:
            return parse_json(text)
        except StrictJSONError as error:
            raise self.failure("protocol", f"sent an answer that {error}") from error

    def events(self, text: bytes, route: Route) -> tuple[Event, ...]:
        """The events of one JSON text."""
        value = self.json(text)
        if route.binding == "JSONRPC":
            value = self._result(value)
        try:
            events = read_events(value)
        except Malformed as error:
            raise self.failure("protocol", f"sent an answer that is not of the protocol: {error}") from error
        self._count += len(events)
        if self._count > self._limits.max_events:
            raise self.failure("flood", f"sent more than {self._limits.max_events} events")
        for event in events:
            if not isinstance(event, MessageEvent):
                self.task_id = event.task_id
            if isinstance(event, ArtifactEvent):
                self.artifacts.add(event.artifact_id)
        return events

    def _result(self, value: Any) -> Any:
        if not isinstance(value, dict):
            raise self.failure("protocol", "sent an answer that is not JSON-RPC")
        error = value.get("error")
        if error is not None:
            told = error.get("message") if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            raise self.failure("refused", f"refused the request ({code}): {' '.join(str(told).split())[:300]}")
        if "result" not in value:
            raise self.failure("protocol", "sent an answer that is not JSON-RPC")
        return value["result"]
