"""One task of an assessor: the message that begins it, its events as they come, and how it ended.

Events are written to `a2a/events.jsonl` and rewards to `rewards.jsonl` at once. What remains is an `Assessment`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio

from benchflow.arena.a2a_client import A2APeer
from benchflow.arena.a2a_types import ArtifactEvent, Event, MessageEvent, Part, PeerFailure, StatusEvent, text_of
from benchflow.arena.assessing.live_verdict import LiveReward, reward_events
from benchflow.files.redaction import Redactor
from benchflow.record import JsonLines, RewardLine, RolloutFolder, Trajectory, write_document
from benchflow.record.codec import plain
from benchflow.record.trajectory import timestamp

CANCEL_SEC: Final = 5.0
MAX_REWARDS: Final = 10_000
"""Reward events that are written down."""


class Assessment:
    """What an assessor has said so far."""

    def __init__(self, folder: RolloutFolder, redactor: Redactor, trajectory: Trajectory, roles: Sequence[str]) -> None:
        self.state: str | None = None
        """That of its task; None before it has one."""
        self.said = ""
        """The text of its last update."""
        self.blamed: tuple[str, str] | None = None
        """The participant that it says broke the rules of the game, and how."""
        self.rewards: Final[list[LiveReward]] = []
        self.problems: Final[list[str]] = []
        """Reward events that are none."""
        self.artifacts: Final[dict[str, list[Part]]] = {}
        self._roles: Final = roles
        self._folder: Final = folder
        self._redactor: Final = redactor
        self._events: Final = trajectory.line()
        self._lines: Final = JsonLines(folder.a2a_events)
        self._reward_lines: Final = JsonLines(folder.rewards)
        self._task: dict[str, Any] = {}

    async def listen(self, peer: A2APeer, request: Mapping[str, Any], timeout: float) -> None:
        """Begin the task and follow it to its end; a task that is left under way is cancelled."""
        self._folder.a2a.mkdir(parents=True, exist_ok=True)
        text = json.dumps(request, ensure_ascii=False)
        try:
            async with aclosing(peer.send(text, dict(request), timeout=timeout)) as events:
                async for event in events:
                    self._note(event)
        finally:
            with anyio.CancelScope(shield=True):
                if self.state in (None, "submitted", "working") and (task := self._task.get("id")):
                    await self._cancel(peer, task)
                self._close()

    async def _cancel(self, peer: A2APeer, task: str) -> None:
        with anyio.move_on_after(CANCEL_SEC):
            try:
                await peer.cancel(task)
            except PeerFailure:
                return  # it is gone already

    def _note(self, event: Event) -> None:
        self._lines.append(self._redactor.data({"time": timestamp(), "event": dict(event.raw)}))
        if isinstance(event, ArtifactEvent):
            kept = self.artifacts.setdefault(event.artifact_id, [])
            if not event.append:
                kept.clear()
            kept.extend(event.parts)
            self._task.update(id=event.task_id, contextId=event.context_id)
            return
        message = event.message
        if isinstance(event, StatusEvent):
            self.state = event.state
            self._task.update(id=event.task_id, contextId=event.context_id)
        elif isinstance(event, MessageEvent):  # an answer without a task is one that has ended
            self.state = "completed"
            self.artifacts.setdefault("", []).extend(event.message.parts)
        if message is not None:
            self.said = text_of(message.parts) or self.said
            self._events("assessor_update", text=text_of(message.parts) or None, state=self.state)
            self._blame(message.parts)
            for found in reward_events(message.parts, self._roles):
                self._reward(found)

    def _blame(self, parts: Sequence[Part]) -> None:
        for part in parts:
            told = (
                part.value.get("participant_failure") if part.kind == "data" and isinstance(part.value, dict) else None
            )
            if isinstance(told, dict) and told.get("role") in self._roles:
                self.blamed = (str(told["role"]), str(told.get("message") or "it broke the rules"))

    def _reward(self, found: LiveReward | str) -> None:
        if isinstance(found, str):
            self.problems.append(found)
            return
        if len(self.rewards) >= MAX_REWARDS:
            return
        self.rewards.append(found)
        meta = {**found.meta, "terminal": found.terminal}
        granularity = "terminal" if found.terminal else "step"
        line = RewardLine(timestamp(), "process", "assessor", found.reward, found.role, "output", granularity, meta)
        self._reward_lines.append(self._redactor.data(plain(line)))
        self._events("reward", role=found.role, reward=found.reward)

    def _close(self) -> None:
        self._lines.close()
        self._reward_lines.close()
        artifacts = [
            {"artifactId": name, "parts": [{part.kind: part.value} for part in parts]}
            for name, parts in self.artifacts.items()
        ]
        document = {**self._task, "state": self.state, "said": self.said, "artifacts": artifacts}
        write_document(self._folder.a2a_task, self._redactor.data(document))
