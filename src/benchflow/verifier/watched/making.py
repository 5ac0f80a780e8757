"""What a verifier makes where no agent was: learned once per verifier and environment, by verifying that.

`Making` compares a box before and after its commands; `made_by` gives the places for a scope.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.sandbox.protocol import Change, Sandbox
from benchflow.verifier.scope import Scope
from benchflow.verifier.surviving.made_places import MadePlaces, made_places
from benchflow.verifier.watched.remembered import Remembered, VerifierKey

Attempt = Callable[[Scope], Awaitable[object]]
_MOST_READ: Final = 2_000
_TIMEOUT_SEC: Final = 60.0
_BEGINNINGS: Final = """\
for file do
  if [ -f "$file" ] && [ -r "$file" ]; then od -An -tx1 -N4 "$file" 2>/dev/null | tr -d ' \\n'; fi
  echo
done
"""
_PARTS: Final = ("files", "folders", "replaced", "programs")


@dataclass(slots=True)
class Making:
    """Collects what the commands of one verification make."""

    places: MadePlaces = field(default_factory=MadePlaces)
    known: bool = False
    """Whether a verification came to its end, so that these are all."""
    _before: list[Change] = field(default_factory=list)

    async def begin(self, sandbox: Sandbox) -> None:
        self._before = await sandbox.changes()

    async def end(self, sandbox: Sandbox) -> None:
        after = await sandbox.changes()
        there = frozenset(change.path for change in self._before)
        files = [c.path for c in after if c.kind == "added" and c.type == "file" and c.path not in there]
        self.places = made_places(self._before, after, await _beginnings(sandbox, files[:_MOST_READ]))
        self.known = True


async def _beginnings(sandbox: Sandbox, files: list[str]) -> Mapping[str, str]:
    """The first bytes of files; none of those that cannot be read."""
    words = ["/bin/sh", "-c", _BEGINNINGS, "sh", *files]
    result = await sandbox.exec(words, user="root", cwd="/", timeout=_TIMEOUT_SEC)
    return dict(zip(files, result.stdout.decode(errors="replace").split("\n"), strict=False))


def _plain(places: MadePlaces | None) -> dict[str, list[str]] | None:
    return {name: sorted(getattr(places, name)) for name in _PARTS} if places is not None else None


def _read(document: Any) -> MadePlaces | None:
    return MadePlaces(*(frozenset(map(str, document[name])) for name in _PARTS))


def new_memory() -> Remembered[MadePlaces | None]:
    """What is known of verifiers, as a new process knows it."""
    return Remembered("made", _plain, _read, lambda: None)


_known = new_memory()
_locks: Final[dict[tuple[int, VerifierKey], anyio.Lock]] = {}


async def recalled(key: VerifierKey) -> MadePlaces | None:
    """What is known already."""
    return await _known.recall(key)


async def made_by(key: VerifierKey, scope: Scope, limit: float, attempt: Attempt) -> tuple[MadePlaces, str | None]:
    """What the verifier of a scope makes, for which `attempt` verifies the environment as built if that is not known;
    and why it is not known, if so. It takes at most `limit` seconds."""
    place = id(asyncio.get_running_loop()), key
    async with _locks.setdefault(place, anyio.Lock()):
        found, problem = await recalled(key), None
        if found is None:
            making = Making()
            problem = await _make(scope, making, limit, attempt)
            found = making.places
            await anyio.to_thread.run_sync(lambda: _known.remember(key, found, keep=problem is None))
    _locks.pop(place, None)
    return found, problem


async def _make(scope: Scope, making: Making, limit: float, attempt: Attempt) -> str | None:
    """Why it stays unknown what was made; None if it is known."""
    with anyio.move_on_after(limit) as time:
        try:
            await attempt(replace(scope, making=making))
        except Exception as error:  # noqa: BLE001 - whatever stops this experiment, the verification stands
            return str(error)
    if time.cancelled_caught:
        return "the time limit was reached"
    return None if making.known else "the verifier could not be run on the environment as built"
