"""One connection to an ACP agent: opened in the sandbox, prompted turn by turn, and always closed.

The SDK's connection and its handlers are asyncio tasks; they belong to the session and end with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import anyio
from acp import PROTOCOL_VERSION, RequestError
from acp.connection import Connection

from benchflow.agents.acp.acp_client import Client
from benchflow.agents.acp.settings import Setting, choose_effort, choose_model, mcp_servers
from benchflow.agents.acp.transport import ProcessTransport
from benchflow.agents.protocol import AgentContext, AgentLimits, StopReason, TurnResult
from benchflow.agents.running import OutputLog
from benchflow.errors import AgentFailure, SandboxFailure
from benchflow.sandbox.protocol import SandboxProcess

CANCEL_GRACE_SEC: Final = 5.0
EXIT_GRACE_SEC: Final = 2.0
NOISE_GRACE_SEC: Final = 20.0
"""How long to wait for a reply after an agent has written text that is not part of the protocol."""
_AUTH_REQUIRED: Final = -32000
_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "end_turn": "end_turn",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_steps",
    "refusal": "refusal",
    "cancelled": "cancelled",
}
_CAPABILITIES: Final = {"fs": {"readTextFile": True, "writeTextFile": True}, "terminal": True}


class Session:
    """Created by `open`; unusable after a turn that was interrupted."""

    def __init__(self, name: str, context: AgentContext, process: SandboxProcess) -> None:
        self._name = name
        self._context = context
        self._process = process
        self._stderr = OutputLog(context.log_folder / "stderr.txt", context.redactor)
        self._noise = OutputLog(context.log_folder / "stdout.txt", context.redactor)
        self._client = Client(context)
        self._transport = ProcessTransport(name, process, self._noise)
        self._connection = Connection(self._client, self._transport)
        self._exit = asyncio.create_task(_exit_code(process))
        self._drain = asyncio.create_task(_drain(process.stderr(), self._stderr))
        self._id = ""
        self._cost_before = 0.0
        self._over: str | None = None

    @classmethod
    async def open(
        cls,
        name: str,
        command: str,
        env: Mapping[str, str],
        context: AgentContext,
        *,
        model: str | None = None,
        auth_method: str | None = None,
    ) -> Self:
        """Start the agent and create a session in the working folder; after an error nothing is left running.

        `model` is set in the session; None leaves the choice to the agent. `auth_method` is used if one is required.
        """
        process = await context.sandbox.process(command, user=context.user, env=env, cwd=context.workdir)
        session = cls(name, context, process)
        try:
            await session._begin(model, auth_method)
        except BaseException:
            await session.close()
            raise
        return session

    async def _begin(self, model: str | None, auth_method: str | None) -> None:
        deadline = time.monotonic() + self._context.limits.start_timeout_sec
        info = {"name": "benchcube", "version": "1"}
        params = {"protocolVersion": PROTOCOL_VERSION, "clientCapabilities": _CAPABILITIES, "clientInfo": info}
        hello = await self._ask("initialize", params, deadline)
        if hello.get("protocolVersion") != PROTOCOL_VERSION:
            raise AgentFailure(
                f"The agent '{self._name}' speaks version {hello.get('protocolVersion')!r} of the protocol, "
                f"not {PROTOCOL_VERSION}.",
                code="protocol-version",
            )
        capabilities = hello.get("agentCapabilities") or {}
        servers = mcp_servers(self._name, self._context.mcp_servers, capabilities)
        wanted = {"cwd": self._context.workdir, "mcpServers": servers}
        try:
            made = await self._ask("session/new", wanted, deadline)
        except AgentFailure as error:
            if error.code != "auth-required" or auth_method is None:
                raise
            await self._ask("authenticate", {"methodId": auth_method}, deadline)
            made = await self._ask("session/new", wanted, deadline)
        if not isinstance(made.get("sessionId"), str):
            raise AgentFailure(f"The agent '{self._name}' created a session without an id.", code="broken-protocol")
        self._id = made["sessionId"]
        for setting in self._settings(made, model):
            await self._ask(setting.method, dict(setting.params), deadline)
        agent_info = hello.get("agentInfo")
        self._context.events("agent_started", agent=self._name, info=agent_info, session_id=self._id)

    def _settings(self, made: Mapping[str, Any], model: str | None) -> Sequence[Setting]:
        wanted = [choose_model(self._name, made, model)] if model else []
        if effort := self._context.reasoning_effort:
            wanted.append(choose_effort(self._name, made, effort))
        return [setting for setting in wanted if setting is not None]

    async def _ask(self, method: str, params: dict[str, Any], deadline: float) -> Mapping[str, Any]:
        """A request before the first prompt; without a timely reply the agent counts as not started."""
        request = asyncio.create_task(self._connection.send_request(method, params))
        try:
            while not request.done() and not self._exit.done():
                now = time.monotonic()
                noise = self._transport.last_noise
                until = deadline if noise is None else min(deadline, noise + NOISE_GRACE_SEC)
                if now >= until:
                    raise self._silent(method)
                await asyncio.wait({request, self._exit}, timeout=min(until - now, 1.0), return_when="FIRST_COMPLETED")
            await asyncio.wait({request}, timeout=EXIT_GRACE_SEC)
            answer = await self._answer(method, request)
        finally:
            await _end(request)
        if isinstance(answer, int):
            last = self._stderr.last_line or self._noise.last_line
            raise AgentFailure(
                f"The agent '{self._name}' exited with code {answer} before it replied to {method}"
                + (f": {last}" if last else "."),
                code="agent-exited",
            )
        return answer

    def _silent(self, method: str) -> AgentFailure:
        said = self._noise.last_line
        return AgentFailure(
            f"The agent '{self._name}' did not reply to {method} in time"
            + (f"; its output is not the protocol: {said!r}." if said else "."),
            code="broken-protocol" if said else "start-timeout",
        )

    async def _answer(self, method: str, request: asyncio.Task[Any]) -> Mapping[str, Any] | int:
        """The result of a request, or the exit code of an agent that ended instead of replying."""
        try:
            if not request.done():
                raise ConnectionError("The agent has ended.")
            answer = await request
        except RequestError as error:
            raise self._refused(method, error) from error
        except ConnectionError:
            await asyncio.wait({self._exit}, timeout=EXIT_GRACE_SEC)
            if self._transport.failure is not None:
                raise self._transport.failure from None
            if self._exit.done():
                ended = self._exit.result()
                if isinstance(ended, SandboxFailure):
                    raise ended from None
                return ended
            raise AgentFailure(
                f"The agent '{self._name}' closed its standard output before it replied to {method}.",
                code="connection-lost",
            ) from None
        if not isinstance(answer, Mapping):
            raise AgentFailure(
                f"The agent '{self._name}' replied to {method} with something other than an object.",
                code="broken-protocol",
            )
        return answer

    def _refused(self, method: str, error: RequestError) -> AgentFailure:
        if error.code == _AUTH_REQUIRED:
            return AgentFailure(f"The agent '{self._name}' requires authentication: {error}.", code="auth-required")
        details = error.data.get("details") if isinstance(error.data, Mapping) else error.data
        said = f"{error}: {details}" if details and str(details) not in str(error) else str(error)
        return AgentFailure(
            f"The agent '{self._name}' replied to {method} with an error: {said[:500]} ({error.code}).",
            code="agent-error",
        )

    async def prompt(self, text: str, timeout: float | None) -> TurnResult:
        """One turn. A turn that is interrupted ends the agent, with everything it started."""
        if self._over is not None:
            raise AgentFailure(self._over, code="agent-over")
        turn = self._client.begin_turn()
        params = {"sessionId": self._id, "prompt": [{"type": "text", "text": text}]}
        request = asyncio.create_task(self._connection.send_request("session/prompt", params))
        try:
            watch = Watch(self._client, self._context.limits, timeout)
            cut = await watch.until_over(request, self._exit)
            if cut is not None:
                return await self._cut_off(request, cut)
            answer = await self._answer("session/prompt", request)
        except BaseException as error:
            self._over = f"The turn of the agent '{self._name}' failed: {error}"
            with anyio.CancelScope(shield=True):
                await self._kill()
            raise
        finally:
            await _end(request)
            turn.end()
        if isinstance(answer, int):
            self._over = f"The agent '{self._name}' exited with code {answer}."
            self._context.events("agent_ended", exit_code=answer)
            return TurnResult("exited", turn.text, exit_code=answer, usage=self._usage(None))
        stop = _STOP_REASONS.get(str(answer.get("stopReason")))
        if stop is None:
            reason = answer.get("stopReason")
            raise AgentFailure(
                f"The agent '{self._name}' sent an unknown stop reason: {reason!r}.", code="broken-protocol"
            )
        return TurnResult(stop, turn.text, usage=self._usage(answer.get("usage")))

    async def _cut_off(self, request: asyncio.Task[Any], cut: Cut) -> TurnResult:
        """Ask the agent to stop, give it a moment, then end it."""
        turn = self._client.turn
        self._client.cancelled = True
        self._over = f"The agent '{self._name}' was ended because {cut.reason}."
        pending = sorted(turn.pending)
        acknowledged = False
        try:
            async with asyncio.timeout(CANCEL_GRACE_SEC):
                await self._connection.send_notification("session/cancel", {"sessionId": self._id})
                await asyncio.wait({request, self._exit}, return_when="FIRST_COMPLETED")
                acknowledged = request.done() and not request.cancelled() and request.exception() is None
        except (TimeoutError, ConnectionError):
            acknowledged = False
        await self._kill()
        turn.end()
        self._context.events(
            "agent_timeout",
            reason=cut.reason,
            timeout_sec=cut.limit,
            pending_tool_call_ids=pending,
            acknowledged=acknowledged,
        )
        return TurnResult(cut.stop, turn.text, timed_out=cut.stop == "timeout", usage=self._usage(None))

    def _usage(self, reported: Any) -> dict[str, float]:
        """The agent's own report of this turn, and the cost since the previous one, as far as known."""
        turn = self._client.turn
        usage: dict[str, float] = {"tool_calls": turn.tool_calls}
        names = {"inputTokens": "input_tokens", "outputTokens": "output_tokens", "cachedReadTokens": "cached_tokens"}
        for theirs, ours in names.items():
            if isinstance(reported, Mapping) and isinstance(reported.get(theirs), int):
                usage[ours] = reported[theirs]
        if turn.cost_usd is not None:
            usage["cost_usd"] = max(turn.cost_usd - self._cost_before, 0.0)
            self._cost_before = turn.cost_usd
        return usage

    async def _kill(self) -> None:
        await self._process.kill()
        await self._client.terminals.close(keep_processes=False)

    async def close(self) -> None:
        """End the agent: close its input, then kill what is still running. Idempotent."""
        with anyio.CancelScope(shield=True):
            sound = bool(self._id) and self._over is None and self._transport.failure is None
            keep = self._context.keep_processes and sound
            await self._process.close_stdin()
            if sound:
                await asyncio.wait({self._exit}, timeout=EXIT_GRACE_SEC)
            if not (keep and self._exit.done()):
                await self._process.kill()
            await self._client.terminals.close(keep_processes=keep)
            await asyncio.wait({self._drain}, timeout=EXIT_GRACE_SEC)
            await self._connection.close()
            await _end(self._drain)
            await _end(self._exit)
            try:
                self._stderr.close()
            finally:
                self._noise.close()


async def _exit_code(process: SandboxProcess) -> int | SandboxFailure:
    """How it ended: on its own, or by a failure of its sandbox, which is not the agent's result."""
    try:
        return await process.wait()
    except SandboxFailure as error:
        return error


async def _drain(chunks: AsyncIterator[bytes], log: OutputLog) -> None:
    async for chunk in chunks:
        log.write(chunk)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for it, ignoring its outcome."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


_LOOK_EVERY_SEC: Final = 1.0
_LAST_ANSWER_SEC: Final = 1.0
"""How long to wait for a reply in the pipe of a process that has ended."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a turn is interrupted."""

    stop: StopReason
    reason: str
    limit: float | None = None


class Watch:
    """Watches one turn."""

    def __init__(self, client: Client, limits: AgentLimits, timeout: float | None) -> None:
        self._client = client
        self._limits = limits
        self._timeout = timeout
        self._began = time.monotonic()

    async def until_over(self, request: asyncio.Task[Any], exited: asyncio.Task[Any]) -> Cut | None:
        """Wait for the reply, the end of the process, or a reason to interrupt the turn."""
        while not request.done():
            if exited.done():
                await asyncio.wait({request}, timeout=_LAST_ANSWER_SEC)
                return None
            now = time.monotonic()
            if (cut := self._breach(now)) is not None:
                return cut
            await asyncio.wait({request, exited}, timeout=self._pause(now), return_when="FIRST_COMPLETED")
        return None

    def _breach(self, now: float) -> Cut | None:
        limits, turn = self._limits, self._client.turn
        if self._timeout is not None and now - self._began >= self._timeout:
            return Cut("timeout", "it reached its time limit", self._timeout)
        idle = limits.idle_timeout_sec
        if idle is not None and not self._client.busy and now - self._client.last_sign >= idle:
            return Cut("timeout", f"it sent nothing for {idle:g} s", idle)
        if limits.max_steps is not None and turn.tool_calls > limits.max_steps:
            return Cut("max_steps", f"it made more than {limits.max_steps} tool calls", limits.max_steps)
        if limits.max_cost_usd is not None and (turn.cost_usd or 0.0) > limits.max_cost_usd:
            return Cut("max_cost", f"it cost more than {limits.max_cost_usd:g} USD", limits.max_cost_usd)
        if limits.max_tokens is not None and (turn.context_tokens or 0) > limits.max_tokens:
            return Cut("max_tokens", f"it used more than {limits.max_tokens} tokens", limits.max_tokens)
        return None

    def _pause(self, now: float) -> float:
        """Seconds until the next check: the next deadline, but at most one second."""
        pauses = [_LOOK_EVERY_SEC]
        if self._timeout is not None:
            pauses.append(self._began + self._timeout - now)
        if self._limits.idle_timeout_sec is not None:
            pauses.append(self._client.last_sign + self._limits.idle_timeout_sec - now)
        return max(min(pauses), 0.01)
