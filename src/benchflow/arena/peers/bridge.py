"""The bridge: an agent that does not speak A2A, as a peer that does. The bridge is outside the agent's box.

    assessor ── A2A ──> Bridge.answer ──> one turn of the agent ──> one answer message
                 contextId = conversation; thoughts and tool calls are updates with metadata

An agent that talks gets its instructions before the first message of a conversation; a script or an oracle gets each
message as it is, and what it prints is its answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol

import anyio

from benchflow.agents.protocol import TurnResult
from benchflow.agents.running import MAX_SAID
from benchflow.arena.a2a_tasks import Updates
from benchflow.arena.a2a_types import Message, Part, PeerFailure, Reply
from benchflow.arena.peers.message_log import shown
from benchflow.arena.peers.participant import Crashed, Silent

MAX_CONTEXTS: Final = 32
"""Conversations of one participant in one game."""
MAX_TEXT: Final = MAX_SAID
"""Characters of an answer from which on it is too long; what a script prints is cut off there."""
_FIRST: Final = "{instructions}\n\n---\nThe first message to you:\n\n{message}"
_NO_ANSWER: Final = frozenset({"max_tokens", "max_steps", "max_calls", "max_cost", "max_model_time", "refusal"})


class Conversation(Protocol):
    """One agent in one conversation."""

    async def turn(self, prompt: str, note: Callable[[Mapping[str, Any]], None]) -> TurnResult:
        """One turn; `note` is called with each event of it."""

    async def close(self) -> None:
        """End the agent; idempotent."""


Open = Callable[[str], Awaitable[Conversation]]
"""Opens a conversation by its id."""


class Bridge:
    """An executor in front of the conversations of one role."""

    def __init__(self, role: str, open_one: Open, instructions: str, *, talks: bool, limit_sec: float | None) -> None:
        """`talks`: it reads prose, so it gets the instructions too."""
        self._role: Final = role
        self._open_one: Final = open_one
        self._instructions: Final = instructions
        self._talks: Final = talks
        self._limit: Final = limit_sec
        self._open: dict[str, Conversation] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def answer(self, message: Message, context_id: str, updates: Updates) -> Reply:
        if context_id not in self._locks and len(self._locks) >= MAX_CONTEXTS:
            raise PeerFailure("refused", f"'{self._role}' already has {MAX_CONTEXTS} conversations.")
        async with self._locks.setdefault(context_id, anyio.Lock()):
            prompt = shown(message.parts)
            if self._talks and context_id not in self._open and self._instructions:
                prompt = _FIRST.format(instructions=self._instructions, message=prompt)
            if context_id not in self._open:
                self._open[context_id] = await self._open_one(context_id)
            result = await self._turn(self._open[context_id], prompt, updates)
        return self._reply(result)

    async def _turn(self, conversation: Conversation, prompt: str, updates: Updates) -> TurnResult:
        """One turn, whose events are passed on while it lasts."""
        send, receive = anyio.create_memory_object_stream[Mapping[str, Any]](1000)

        def note(event: Mapping[str, Any]) -> None:
            if event.get("type") in ("agent_thought", "tool_call"):
                try:
                    send.send_nowait(event)
                except anyio.WouldBlock:
                    return  # updates are a courtesy: what happened is in the trajectory

        async def tell() -> None:
            async with receive:
                async for event in receive:
                    about = {"kind": event["type"], "title": event.get("title") or event.get("kind")}
                    await updates.status(metadata={key: value for key, value in about.items() if value})

        result: TurnResult | None = None
        failed: Exception | None = None
        async with anyio.create_task_group() as group, send:
            group.start_soon(tell)
            try:
                result = await conversation.turn(prompt, note)
            except Exception as error:  # noqa: BLE001 - raised below as it is, and not as one of a group
                failed = error
        if result is None:
            raise failed or RuntimeError("a turn ended without a result")
        return result

    def _reply(self, result: TurnResult) -> Reply:
        if result.timed_out:
            raise Silent(self._role, self._limit or 0.0)
        if result.stop_reason == "exited" and result.exit_code:
            raise Crashed(self._role, f"exited with code {result.exit_code}")
        if result.stop_reason == "cancelled":
            return Reply(state="canceled")
        if len(result.text) >= MAX_TEXT:
            raise PeerFailure("flood", f"The participant '{self._role}' answered with {MAX_TEXT} characters or more.")
        metadata = {"stop_reason": result.stop_reason} if result.stop_reason in _NO_ANSWER else {}
        return Reply((Part.of_text(result.text),), metadata=metadata)

    async def cancel(self, context_id: str) -> None:
        """End what is under way; the next message of the conversation begins a new one."""
        conversation = self._open.pop(context_id, None)
        if conversation is not None:
            await conversation.close()

    async def close(self) -> None:
        """End every conversation; idempotent."""
        with anyio.CancelScope(shield=True):
            while self._open:
                _, conversation = self._open.popitem()
                await conversation.close()
