"""An agent that executes its prompt line by line: a complete ACP agent without a model.

It understands these lines, and repeats all others:

    $ COMMAND          run a command in a terminal of the client, after asking for permission
    read PATH          show the content of a file
    write PATH TEXT    write a text to a file
    think TEXT         think aloud
    wait SECONDS       do nothing; ends when the turn is cancelled

Run it with `bench run PACKAGE --agent "acp:python3 shell_agent.py"`, with this file and the Python package
`agent-client-protocol` in the environment.
"""

from __future__ import annotations

import asyncio
from typing import Any

import acp
from acp import schema


class ShellAgent:
    """One object serves all sessions of a connection."""

    def __init__(self) -> None:
        self._client: Any = None
        self._cancelled = asyncio.Event()
        self._sessions = 0
        self._calls = 0

    def on_connect(self, client: Any) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, **_: Any) -> schema.InitializeResponse:
        return schema.InitializeResponse(
            protocol_version=min(protocol_version, acp.PROTOCOL_VERSION),
            agent_info=schema.Implementation(name="shell-agent", version="1.0"),
            agent_capabilities=schema.AgentCapabilities(),
        )

    async def new_session(self, cwd: str, **_: Any) -> schema.NewSessionResponse:
        self._sessions += 1
        return schema.NewSessionResponse(session_id=f"session-{self._sessions}")

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._cancelled.set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> schema.PromptResponse:
        self._cancelled.clear()
        text = "\n".join(block.text for block in prompt if block.type == "text")
        words = 0
        for line in filter(None, map(str.strip, text.splitlines())):
            if self._cancelled.is_set():
                return schema.PromptResponse(stop_reason="cancelled")
            answer = await self._do(session_id, line)
            words += len(answer.split())
            await self._client.session_update(
                session_id=session_id, update=acp.update_agent_message_text(answer + "\n")
            )
        used = schema.Usage(input_tokens=len(text.split()), output_tokens=words, total_tokens=len(text.split()) + words)
        stop = "cancelled" if self._cancelled.is_set() else "end_turn"
        return schema.PromptResponse(stop_reason=stop, usage=used)

    async def _do(self, session_id: str, line: str) -> str:
        verb, _, rest = line.partition(" ")
        if verb == "$":
            return await self._run(session_id, rest)
        if verb == "think":
            await self._client.session_update(session_id=session_id, update=acp.update_agent_thought_text(rest))
            return "I have thought."
        if verb == "wait":
            return await self._wait(float(rest))
        try:
            if verb == "read":
                return str((await self._client.read_text_file(session_id=session_id, path=rest)).content)
            if verb == "write":
                path, _, content = rest.partition(" ")
                await self._client.write_text_file(session_id=session_id, path=path, content=content)
                return f"I wrote {path}."
        except acp.RequestError as error:
            return f"refused: {error.data}"
        return line

    async def _wait(self, seconds: float) -> str:
        try:
            await asyncio.wait_for(self._cancelled.wait(), timeout=seconds)
        except TimeoutError:
            return "I have waited."
        return "I was asked to stop."

    async def _run(self, session_id: str, command: str) -> str:
        self._calls += 1
        call = f"call-{self._calls}"
        start = acp.start_tool_call(call, command, kind="execute", status="pending", raw_input={"command": command})
        await self._client.session_update(session_id=session_id, update=start)
        if not await self._may(session_id, call, command):
            await self._finish(session_id, call, "failed", "not permitted")
            return "I was not permitted to."
        terminal = (await self._client.create_terminal(session_id=session_id, command=command)).terminal_id
        ended = await self._client.wait_for_terminal_exit(session_id=session_id, terminal_id=terminal)
        output = (await self._client.terminal_output(session_id=session_id, terminal_id=terminal)).output
        await self._client.release_terminal(session_id=session_id, terminal_id=terminal)
        await self._finish(session_id, call, "completed" if ended.exit_code == 0 else "failed", output)
        return f"exit code {ended.exit_code}: {output.strip()}"

    async def _may(self, session_id: str, call: str, command: str) -> bool:
        answer = await self._client.request_permission(
            session_id=session_id,
            tool_call=schema.ToolCallUpdate(tool_call_id=call, title=command, kind="execute"),
            options=[
                schema.PermissionOption(option_id="yes-once", name="Run it", kind="allow_once"),
                schema.PermissionOption(option_id="no", name="Do not run it", kind="reject_once"),
            ],
        )
        return bool(answer.outcome.outcome == "selected" and answer.outcome.option_id == "yes-once")

    async def _finish(self, session_id: str, call: str, status: Any, output: str) -> None:
        update = acp.update_tool_call(call, status=status, raw_output=output)
        await self._client.session_update(session_id=session_id, update=update)


if __name__ == "__main__":
    asyncio.run(acp.run_agent(ShellAgent()))
