"""What the roles of a team learn about each other's work: nothing, who did how much, or everything.

With `full`, a role finds the events of its teammates in a file of its box, as they were recorded: without secrets, and
without what the users of a rollout do on their own.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from typing import Final

from benchflow.agents.running import run_as_root
from benchflow.rollout.users import RoundResult, handoff_note
from benchflow.sandbox.protocol import Sandbox

FOLDER: Final = "/handoff"
MAX_BYTES: Final = 8 << 20
"""Of all events that are kept for others; the oldest go first."""


class TeamMemory:
    """What happened in the turns of a team so far."""

    def __init__(self, visibility: str) -> None:
        """`visibility` is `none`, `metadata` or `full`."""
        self._visibility: Final = visibility
        self._events: deque[tuple[str, bytes]] = deque()
        self._size = 0
        self._dropped = 0
        self._written: list[Sandbox] = []

    def add(self, result: RoundResult) -> None:
        """Remember a turn that has ended."""
        if self._visibility != "full" or result.role is None:
            return
        for event in result.trajectory:
            line = json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
            self._events.append((result.role, line))
            self._size += len(line)
        while self._size > MAX_BYTES:
            self._size -= len(self._events.popleft()[1])
            self._dropped += 1

    async def brief(self, role: str, box: Sandbox, previous: Iterable[RoundResult]) -> str:
        """What is added to the prompt of a role; `previous` are the turns that were handed to it."""
        others = [result for result in previous if result.role not in (None, role)]
        if self._visibility == "none" or not others:
            return ""
        notes = "".join(handoff_note(result) for result in others)
        if self._visibility == "metadata":
            return notes
        place = f"{FOLDER}/{role}/trajectory.jsonl"
        await box.write_file(place, self._told(role))
        if box not in self._written:
            self._written.append(box)
        return f"{notes}\n\nWhat your teammates did and said is in {place}, one JSON object per line, oldest first."

    def _told(self, role: str) -> bytes:
        lines = [line for owner, line in self._events if owner != role]
        if self._dropped:
            lines.insert(
                0, json.dumps({"type": "note", "text": f"{self._dropped} older events were left out"}).encode() + b"\n"
            )
        return b"".join(lines)

    async def forget(self, boxes: Iterable[Sandbox]) -> None:
        """Remove the files from boxes that stay: they are no work of the team."""
        for box in boxes:
            if box in self._written:
                self._written.remove(box)
                await run_as_root(box, ["rm", "-rf", "--", FOLDER], FOLDER)
