"""JSON-RPC messages over the standard streams of a process inside a sandbox, one per line.

Input is limited: the length of a line, text outside the protocol, and the total. The first violation ends the
connection and is stored as `failure`; the caller turns it into an error of the agent.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any, Final

from benchflow.agents.running import OutputLog
from benchflow.errors import AgentFailure, SandboxFailure
from benchflow.sandbox.protocol import SandboxProcess

MAX_LINE: Final = 16 << 20
MAX_NOISE: Final = 1 << 20
MAX_TOTAL: Final = 512 << 20
_MAX_UNSENT: Final = 256


class ProcessTransport:
    """The SDK's `Transport` over a `SandboxProcess`; `receive` never raises, it ends."""

    def __init__(self, agent: str, process: SandboxProcess, noise: OutputLog) -> None:
        self._agent = agent
        self._process = process
        self._noise = noise
        self._lines = _lines(process.stdout())
        self._sending = asyncio.Lock()
        self._unsent = 0
        self._sent = asyncio.Event()
        self._noise_bytes = 0
        self._total = 0
        self.failure: AgentFailure | None = None
        """Why the connection ended, if not because the process did."""
        self.last_noise: float | None = None
        """When text outside the protocol was last received."""

    async def send(self, message: dict[str, Any]) -> None:
        """Send a message. If the agent is gone, a reply is dropped; for any other message it is an error."""
        data = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._unsent += 1
        try:
            async with self._sending:
                await self._process.send(data)
        except SandboxFailure as error:
            if "method" in message:
                raise ConnectionError("The agent no longer accepts messages.") from error
        finally:
            self._unsent -= 1
            self._sent.set()

    async def receive(self) -> dict[str, Any] | None:
        """The next message; None if there are no more."""
        await asyncio.sleep(0)  # lets handlers of earlier messages run, whatever is in the pipe
        while self._unsent > _MAX_UNSENT:  # an agent that sends requests without reading replies has to wait
            self._sent.clear()
            await self._sent.wait()
        try:
            async for line in self._lines:
                message = self._message(line)
                if message is not None:
                    return message
        except SandboxFailure:
            return None
        except _Breach as breach:
            self.failure = AgentFailure(f"The agent '{self._agent}' {breach}.", code=breach.code)
        return None

    async def close(self) -> None:
        """Nothing to do: the process is ended by its owner."""

    def _message(self, line: bytes) -> dict[str, Any] | None:
        """The message of a line; None for text outside the protocol. Raises `_Breach`."""
        self._total += len(line) + 1
        if len(line) > MAX_LINE:
            raise _Breach("flood", f"sent a line of more than {MAX_LINE >> 20} MB")
        if self._total > MAX_TOTAL:
            raise _Breach("flood", f"sent more than {MAX_TOTAL >> 20} MB of messages")
        stripped = line.strip()
        if stripped.startswith(b"{"):
            return _parsed(stripped)
        if stripped:
            self._take_noise(line)
        return None

    def _take_noise(self, line: bytes) -> None:
        """Text outside the protocol, such as a banner: logged, and tolerated up to a limit."""
        self._noise.write(line + b"\n")
        self._noise_bytes += len(line) + 1
        self.last_noise = time.monotonic()
        if self._noise_bytes > MAX_NOISE:
            raise _Breach("flood", f"wrote more than {MAX_NOISE >> 20} MB outside the protocol to its standard output")


class _Breach(Exception):
    """A violation of the protocol by the agent."""

    def __init__(self, code: str, what: str) -> None:
        super().__init__(what)
        self.code = code


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        message: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise _Breach("broken-protocol", f"sent a line that is not JSON: {_shown(line)}") from None
    if "method" not in message and "id" not in message:
        raise _Breach("broken-protocol", f"sent JSON that is not a JSON-RPC message: {_shown(line)}")
    if not isinstance(message.get("method", ""), str):
        raise _Breach("broken-protocol", f"sent a method that is not a string: {_shown(line)}")
    return message


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines without line ends; a line over the limit is truncated and ends the stream."""
    pending = bytearray()
    async for chunk in chunks:
        pending += chunk
        if b"\n" in chunk:
            *whole, rest = pending.split(b"\n")
            pending = bytearray(rest)
            for line in whole:
                yield bytes(line)
        if len(pending) > MAX_LINE:
            yield bytes(pending)
            return
    if pending:
        yield bytes(pending)


def _shown(line: bytes) -> str:
    text = line[:80].decode(errors="replace")
    return repr(text + ("…" if len(line) > 80 else ""))
