"""`Places`: the clients that an OpenEnv server has now. There are at most so many, and none is silent for too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import anyio

from benchflow.serve.openenv.openenv_frames import FrameError
from benchflow.serve.openenv.openenv_seat import Open, Seat
from benchflow.serve.served_tasks import ServedTasks

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Place:
    """A seat that is taken."""

    seat: Seat
    scope: anyio.CancelScope | None = None
    """Of the connection that uses it; cancelled when the place is taken away."""
    used: float = field(default_factory=time.monotonic)
    busy: int = 0
    """How many messages are being answered."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self.busy += 1
        try:
            yield
        finally:
            self.busy -= 1
            self.used = time.monotonic()


class Places:
    """All of them."""

    def __init__(self, tasks: ServedTasks, open_episode: Open, *, most: int, idle_sec: float) -> None:
        self._tasks: Final = tasks
        self._open: Final = open_episode
        self._most: Final = most
        self._idle_sec: Final = idle_sec
        self._taken: Final[dict[str, Place]] = {}

    def take(self) -> Place:
        """A new place; `FrameError` if all are taken."""
        if len(self._taken) >= self._most:
            sentence = f"All {self._most} sessions of this server are in use."
            counts = {"active_sessions": len(self._taken), "max_sessions": self._most}
            raise FrameError("CAPACITY_REACHED", sentence, counts)
        place = Place(Seat(self._tasks, self._open))
        self._taken[place.seat.id] = place
        return place

    def find(self, session_id: str) -> Place:
        """The place of a session; `FrameError` if there is none."""
        if session_id not in self._taken:
            raise FrameError("SESSION_ERROR", "There is no such session. Silent sessions are closed.")
        return self._taken[session_id]

    async def leave(self, place: Place) -> None:
        """Free a place, and end what its client played; safe to call again."""
        self._taken.pop(place.seat.id, None)
        with anyio.CancelScope(shield=True):
            try:
                await place.seat.close()
            except Exception:  # code of a cube; the other clients go on
                logger.exception("Closing an episode failed")

    async def leave_all(self) -> None:
        async with anyio.create_task_group() as leaving:
            for place in list(self._taken.values()):
                leaving.start_soon(self.leave, place)

    async def reap(self) -> None:
        """Forever: take away the places of clients that are silent for too long."""
        while True:
            await anyio.sleep(min(self._idle_sec / 4, 30.0))
            limit = time.monotonic() - self._idle_sec
            for place in [each for each in self._taken.values() if not each.busy and each.used < limit]:
                logger.warning("A session is closed: its client is silent.")
                if place.scope is not None:
                    place.scope.cancel()
                await self.leave(place)
