"""What verifiers look for and do not find, learned by watching their programs.

`knowing` gives a scope that knows it; for that its verifier is run once on the environment as built, with a `Watch`.
`learn` adds what it looks for in the state of an oracle. Both are kept for a verifier and an environment, in this
process and in the user's cache.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from benchflow.files.atomic import write_atomic
from benchflow.files.bounded import RefusedFileError, read_regular
from benchflow.files.strict_json import StrictJSONError, parse_json
from benchflow.files.user_store import default_store
from benchflow.verifier.scope import Scope
from benchflow.verifier.surviving.missed_lookups import (
    Lookups,
    MissedPaths,
    Named,
    missed_folders,
    missed_paths,
)
from benchflow.verifier.watched.watch import Watch

Attempt = Callable[[Scope], Awaitable[object]]

_MOST_BYTES: Final = 64 << 20
_MOST_TEXT: Final = 1 << 20
_MOST_KNOWN: Final = 64
_WATCH_SEC: Final = 60.0
"""How long a verifier is watched: one that waits for the work looked for its programs before."""
_NEVER_STARTED: Final = frozenset({"halt", "init", "killall5", "poweroff", "reboot", "shutdown", "telinit"})


@dataclass(frozen=True, slots=True)
class LookupsKey:
    """What the look-ups of a verifier depend on."""

    content_digest: str
    environment: str
    sandbox: str
    rules: str
    step: str | None
    strategy: str
    variables: tuple[tuple[str, str], ...] = field(repr=False)
    """Those of the verifier; only a digest of the whole key is written down."""

    def place(self, folder: Path) -> Path:
        key = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return folder / self.content_digest.removeprefix("sha256:") / f"{key}.lookups"


@dataclass(frozen=True, slots=True)
class Subject:
    """A verifier to watch: under which key it is known, and what its environment was built with."""

    key: LookupsKey
    programs: Container[str]
    workdir: str


AS_BUILT: Final = "as built"
ORACLE: Final = "oracle"


class KnownLookups:
    """What verifiers look for, by key, and the state in which they do: the environment as built, or the oracle's."""

    def __init__(self) -> None:
        self._known: Final[dict[LookupsKey, dict[str, Lookups]]] = {}
        self.problems: Final[dict[LookupsKey, str]] = {}
        """Why something may be missing; such look-ups are used in this process and not kept."""

    def recall(self, key: LookupsKey) -> dict[str, Lookups]:
        """What is known, by state."""
        found = self._known.get(key)
        if found is None:
            found = self._known.setdefault(key, _read(key.place(_folder())))
            for oldest in list(self._known)[:-_MOST_KNOWN]:
                self._known.pop(oldest, None)
        return found

    def remember(self, key: LookupsKey, state: str, watch: Watch) -> None:
        known = self.recall(key)
        known[state] = watch.lookups
        if watch.problem is not None:
            self.problems[key] = watch.problem
        if key in self.problems:
            return
        with suppress(OSError):  # then the next process watches again
            place = key.place(_folder())
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, json.dumps({name: _plain(item) for name, item in known.items()}))


KNOWN: Final = KnownLookups()
_locks: Final[dict[tuple[int, LookupsKey], anyio.Lock]] = {}


async def knowing(scope: Scope, subject: Subject, attempt: Attempt) -> Scope:
    """The scope with what its programs look for in vain. They are watched once per key: `attempt` verifies the
    environment as built in a scope."""
    place = id(asyncio.get_running_loop()), subject.key
    async with _locks.setdefault(place, anyio.Lock()):
        known = await anyio.to_thread.run_sync(KNOWN.recall, subject.key)
        if AS_BUILT not in known:
            shared = replace(scope, isolation=replace(scope.isolation, rung="shared"), perturbation=None)
            await learn(shared, subject, AS_BUILT, attempt)
            known = KNOWN.recall(subject.key)
    _locks.pop(place, None)
    return _with(scope, subject, known)


async def recalled(scope: Scope, subject: Subject) -> Scope | None:
    """The same if its programs were watched before."""
    known = await anyio.to_thread.run_sync(KNOWN.recall, subject.key)
    return _with(scope, subject, known) if AS_BUILT in known else None


def _with(scope: Scope, subject: Subject, known: Mapping[str, Lookups]) -> Scope:
    lookups = functools.reduce(Lookups.__or__, known.values(), Lookups())
    named, _ = named_by(scope.folders, scope.prompt)
    return replace(scope, missed=missed_paths(lookups, named, subject.workdir))


def more_missed(scope: Scope, subject: Subject, watch: Watch) -> MissedPaths:
    """What a verifier looks for in vain, with what was seen of it in one more state."""
    seen = replace(watch.lookups, found=frozenset())
    lookups = functools.reduce(Lookups.__or__, KNOWN.recall(subject.key).values(), seen)
    return missed_paths(lookups, named_by(scope.folders, scope.prompt)[0], subject.workdir)


async def learn(scope: Scope, subject: Subject, state: str, attempt: Attempt, given: Iterable[str] = ()) -> None:
    """Remember what a verifier looks for in a state that `attempt` verifies. `given` are paths that a solution adds.

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
        first.lookups = replace(first.lookups, found=frozenset())
    await anyio.to_thread.run_sync(KNOWN.remember, subject.key, state, first)


@functools.lru_cache(maxsize=32)
def named_by(folders: Sequence[Path], prompt: str) -> tuple[Named, frozenset[str]]:
    """What the texts of task and verifier name, and the words of the verifier's alone."""
    files = (Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names)
    texts = [_text(file) for file in files if file.is_file() and not file.is_symlink()]
    return Named.in_texts(prompt, texts), Named.in_texts("", texts).words


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(_MOST_TEXT).decode(errors="replace")


def _folder() -> Path:
    """Beside the proofs of isolation, which are for the same packages and environments."""
    return default_store() / "proofs"


def _plain(lookups: Lookups) -> dict[str, list[str]]:
    return {name: sorted(getattr(lookups, name)) for name in _PARTS}


def _read(place: Path) -> dict[str, Lookups]:
    """What a file has; one that is damaged has nothing."""
    try:
        document = parse_json(read_regular(place, max_bytes=_MOST_BYTES))
        with suppress(OSError):  # `bench cache prune` goes by the last use
            os.utime(place)
        return {str(name): _lookups(item) for name, item in document.items()}
    except (OSError, RefusedFileError, StrictJSONError, AttributeError, KeyError, TypeError):
        return {}


def _lookups(item: Any) -> Lookups:
    return Lookups(**{name: frozenset(map(str, item[name])) for name in _PARTS})


_PARTS: Final = ("missed", "asked", "found", "listed", "executed", "given")
