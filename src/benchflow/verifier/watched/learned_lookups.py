"""What verifiers look for and do not find, learned by watching their programs.

`knowing` gives a scope that knows it; for that its verifier is run once on the environment as built, with a `Watch`.
`learn` adds what it looks for in the state of an oracle. Both are kept for a verifier and an environment, in this
process and in the user's cache.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.verifier.scope import Scope
from benchflow.verifier.surviving.missed_lookups import (
    Lookups,
    MissedPaths,
    Named,
    missed_folders,
    missed_paths,
)
from benchflow.verifier.watched.remembered import Remembered, VerifierKey
from benchflow.verifier.watched.watch import Watch

Attempt = Callable[[Scope], Awaitable[object]]

_MOST_TEXT: Final = 1 << 20
_WATCH_SEC: Final = 60.0
"""How long a verifier is watched: one that waits for the work looked for its programs before."""
_NEVER_STARTED: Final = frozenset({"halt", "init", "killall5", "poweroff", "reboot", "shutdown", "telinit"})


@dataclass(frozen=True, slots=True)
class Subject:
    """A verifier to watch: under which key it is known, and what its environment was built with."""

    key: VerifierKey
    programs: Container[str]
    workdir: str


AS_BUILT: Final = "as built"
ORACLE: Final = "oracle"


_PARTS: Final = ("missed", "asked", "found", "listed", "executed", "settings", "given")


def _plain(known: Mapping[str, Lookups]) -> dict[str, dict[str, list[str]]]:
    return {state: {name: sorted(getattr(lookups, name)) for name in _PARTS} for state, lookups in known.items()}


def _read(document: Any) -> dict[str, Lookups]:
    return {str(state): _lookups(item) for state, item in document.items()}


def _lookups(item: Any) -> Lookups:
    return Lookups(**{name: frozenset(map(str, item[name])) for name in _PARTS})


class KnownLookups:
    """What verifiers look for, by key, and the state in which they do: the environment as built, or the oracle's."""

    def __init__(self) -> None:
        self._known: Final[Remembered[dict[str, Lookups]]] = Remembered("lookups", _plain, _read, dict)
        self.problems: Final[dict[VerifierKey, str]] = {}
        """Why something may be missing; such look-ups are used in this process and not kept."""

    async def recall(self, key: VerifierKey) -> dict[str, Lookups]:
        """What is known, by state."""
        return await self._known.recall(key)

    async def remember(self, key: VerifierKey, state: str, watch: Watch) -> None:
        known = await self.recall(key)
        known[state] = watch.lookups
        if watch.problem is not None:
            self.problems[key] = watch.problem
        keep = key not in self.problems
        await anyio.to_thread.run_sync(lambda: self._known.remember(key, known, keep=keep))


KNOWN: Final = KnownLookups()
_locks: Final[dict[tuple[int, VerifierKey], anyio.Lock]] = {}


async def knowing(scope: Scope, subject: Subject, attempt: Attempt) -> Scope:
    """The scope with what its programs look for in vain. They are watched once per key: `attempt` verifies the
    environment as built in a scope."""
    place = id(asyncio.get_running_loop()), subject.key
    async with _locks.setdefault(place, anyio.Lock()):
        known = await KNOWN.recall(subject.key)
        if AS_BUILT not in known:
            shared = replace(scope, isolation=replace(scope.isolation, rung="shared"), perturbation=None)
            await learn(shared, subject, AS_BUILT, attempt)
            known = await KNOWN.recall(subject.key)
    _locks.pop(place, None)
    return _with(scope, subject, known)


async def recalled(scope: Scope, subject: Subject) -> Scope | None:
    """The same if its programs were watched before."""
    known = await KNOWN.recall(subject.key)
    return _with(scope, subject, known) if AS_BUILT in known else None


def _with(scope: Scope, subject: Subject, known: Mapping[str, Lookups]) -> Scope:
    lookups = functools.reduce(Lookups.__or__, known.values(), Lookups())
    return replace(scope, missed=missed_paths(lookups, _named(scope), subject.workdir))


async def more_missed(scope: Scope, subject: Subject, watch: Watch) -> MissedPaths:
    """What a verifier looks for in vain, with what was seen of it in one more state."""
    known = (await KNOWN.recall(subject.key)).values()
    lookups = functools.reduce(Lookups.__or__, known, watch.lookups.of_the_work)
    return missed_paths(lookups, _named(scope), subject.workdir)


def _named(scope: Scope) -> Named:
    steps = [item.oracle_dir for item in scope.view.steps if item.config.name == scope.step]
    solutions = tuple(folder for folder in (scope.view.oracle_dir, *steps) if folder is not None)
    return named_by(scope.folders, scope.prompt, solutions)[0]


async def learn(scope: Scope, subject: Subject, state: str, attempt: Attempt, given: Iterable[str] = ()) -> None:
    """Remember what a verifier looks for in a state that `attempt` verifies. `given` are paths that a solution adds
    or changes.

    It is watched twice, the second time with the folders that it missed: then it looks into them.
    """
    _, words = named_by(scope.folders, scope.prompt)
    names = sorted(word for word in words - _NEVER_STARTED if word in subject.programs)
    limit = min(scope.config.timeout_sec, _WATCH_SEC)
    scope = replace(scope, config=scope.config.replace(timeout_sec=limit))
    left = anyio.current_effective_deadline() - anyio.current_time()
    first, second = Watch(names), Watch()
    with anyio.move_on_after(left / 2) as time:  # the rest is for the verification itself
        try:
            began = anyio.current_time()
            await attempt(replace(scope, watch=first))
            second.folders = missed_folders(first.lookups, subject.workdir)
            if second.folders and anyio.current_time() - began < _WATCH_SEC / 2:
                await attempt(replace(scope, watch=second))
        except Exception as error:  # noqa: BLE001 - whatever stops this experiment, the verification can go on
            first.problems.append(str(error))
    if time.cancelled_caught:
        first.problems.append("the time limit was reached")
    more = replace(second.lookups, found=frozenset())  # the folders that were made here would be among it
    first.lookups |= more | Lookups(given=frozenset(given))
    if state != AS_BUILT:  # what the oracle adds is not the environment's
        first.lookups = first.lookups.of_a_solution
    await KNOWN.remember(subject.key, state, first)


@functools.lru_cache(maxsize=32)
def named_by(folders: Sequence[Path], prompt: str, solutions: Sequence[Path] = ()) -> tuple[Named, frozenset[str]]:
    """What the texts of task, verifier and solutions name, and the words of the verifier's alone."""
    texts = _texts(folders)
    return Named.in_texts(prompt, texts, _texts(solutions)), Named.in_texts("", texts).words


def _texts(folders: Iterable[Path]) -> list[str]:
    files = (Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names)
    return [_text(file) for file in files if file.is_file() and not file.is_symlink()]


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(_MOST_TEXT).decode(errors="replace")
