"""What the verifier's programs look for in vain where no agent was: nothing of the agent stands there, pure.

`Lookups` are what a watched verification looked for, `missed_paths` those in which the environment stays as built where
the agent's system changes are kept. No list of names is needed for that: whatever a program looks for by itself, it
also looks for on the environment as built. What the task or the verifier names is exempt, because it may be the work,
unless the environment itself has one of that name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Final

from benchflow.sandbox.protocol import Change

MOST: Final = 100_000
"""How many paths are kept."""
_PLACES: Final = ("/bin", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/root", "/sbin", "/usr")
_STATE: Final = re.compile(r"/var/lib/(apt|dpkg|gems|ghc|javascript|pip|python|texmf)/.*")
"""Elsewhere is data, which a verifier looks for because it is the work."""
_SETTINGS: Final = "/etc/"
_HAVE_FOLDERS: Final = ("/lib", "/opt/", "/usr/", "/var/lib/")
_FILE: Final = re.compile(r".*(/s?bin/[^/]*|\.[a-z_]\w*)", re.DOTALL)
_SOFTWARE: Final = ("/lib", "/opt/", "/usr/")
_FLAT: Final = frozenset(
    f"{root}{folder}"
    for root in ("", "/usr", "/usr/local")
    for folder in ("", "/games", "/include", "/lib", "/lib32", "/lib64", "/libexec", "/libx32", "/share", "/src")
)
_COLLECTION: Final = re.compile(
    r"s?bin|(site|dist)-packages|node_modules|gems|specifications|default|(site-)?library|doc|man\d?|.*-linux-.*"
)
_WORD: Final = re.compile(r"[\w.+@-]+")
_PATH: Final = re.compile(r"/[\w./+@-]+")


@dataclass(frozen=True, slots=True)
class Lookups:
    """What programs looked for: paths that do not exist, last parts of paths that do, and folders that they list."""

    missed: frozenset[str] = frozenset()
    found: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    """Paths that a solution of the package adds: whatever looks for them, they may be the work."""

    def __or__(self, other: Lookups) -> Lookups:
        parts = (getattr(self, part.name) | getattr(other, part.name) for part in fields(self))
        return Lookups(*parts)


@dataclass(frozen=True, slots=True)
class MissedPaths:
    """Paths at which nothing of the agent is seen, and the folders above them."""

    paths: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """Folders of software to which the agent adds no file, because a program reads all that is there."""
    known: Callable[[str], bool] = bool
    """Whether a path may be the work all the same."""

    def answers(self, change: Change) -> bool:
        """Whether a change is such a path, or a link or file on the way to one.

        A folder is none: what programs look for in it counts, and the rest may be what was installed.
        """
        if change.kind == "deleted" or change.type == "directory":
            return False
        if change.path in self.paths or change.path in self.above:
            return True
        return change.path.rpartition("/")[0] in self.listed and not self.known(change.path)


@dataclass(frozen=True, slots=True)
class Named:
    """The words and paths of the task's and the verifier's texts."""

    words: frozenset[str]
    paths: frozenset[str]

    @classmethod
    def in_texts(cls, texts: Iterable[str]) -> Named:
        words, paths = set[str](), set[str]()
        for text in texts:
            words.update(_variants(text))
            paths.update(path.rstrip("/.") for path in _PATH.findall(text))
        return cls(frozenset(words), frozenset(paths))


@functools.lru_cache(maxsize=32)
def missed_paths(lookups: Lookups, named: Named, workdir: str) -> MissedPaths:
    """The paths that stay as built: missing."""

    def known(path: str) -> bool:
        return path in lookups.given or _is_named(path, lookups.found, named)

    kept = [path for path in lookups.missed if _is_place(path, workdir) and not known(path)]
    above = frozenset(folder for path in kept for folder in _folders(path))
    listed = frozenset(path for path in _own_listed(lookups.listed) if path not in named.paths)
    return MissedPaths(frozenset(kept), above, listed, known)


def _own_listed(listed: frozenset[str]) -> Iterator[str]:
    """Folders of software that a program lists by itself: not collections, in which each entry is a piece of software
    of its own, and not those that are passed when a whole tree is searched."""
    for path in listed:
        parent, _, name = path.rpartition("/")
        searched = parent in listed and parent.rpartition("/")[0] in listed
        if path.startswith(_SOFTWARE) and path not in _FLAT and not _COLLECTION.fullmatch(name) and not searched:
            yield path


def missed_folders(lookups: Lookups, workdir: str) -> list[str]:
    """Missed paths that could be folders, in which programs would look for more."""
    kept = (path for path in lookups.missed if path.startswith(_HAVE_FOLDERS) and _is_place(path, workdir))
    return sorted(path for path in kept if not _FILE.fullmatch(path))


def read_lookups(data: bytes) -> tuple[Lookups, bool]:
    """The records of the program `missed`, and whether they are all: it can be refused, or have too much to say.

    A verifier finds at least its shell; without any record nothing was seen.
    """
    missed, found, listed, whole = set[str](), set[str](), set[str](), True
    for record in data.split(b"\0")[:-1]:
        text = record[1:].decode("utf-8", "surrogateescape")
        if record[:1] == b"-":
            missed.add(text)
        elif record[:1] == b"+":
            found.add(text)
        elif record[:1] == b"=":
            listed.add(text)
        else:
            whole = False
    return Lookups(frozenset(missed), frozenset(found), frozenset(listed)), whole and bool(found) and len(
        missed
    ) <= MOST


def _is_place(path: str, workdir: str) -> bool:
    """Whether programs, libraries or settings are there; the agent's own folder is its work."""
    if path == workdir or path.startswith(f"{workdir.rstrip('/')}/") or workdir.startswith(f"{path}/"):
        return False
    return path.startswith(tuple(f"{place}/" for place in _PLACES)) or path.count("/") == 1 or bool(_STATE.match(path))


def _is_named(path: str, found: frozenset[str], named: Named) -> bool:
    if path in named.paths:
        return True
    if any(folder in named.paths for folder in _folders(path) if folder.startswith(_SETTINGS)):
        return True
    name = path.rpartition("/")[2]
    return name not in found and any(word in named.words and word not in found for word in _names(name))


def _names(name: str) -> Iterator[str]:
    """How a text may speak of a file: by its name, without its endings, and a library without `lib`."""
    plain = name.casefold().removeprefix(".")
    stem = plain.partition(".")[0]
    yield from (plain, stem, plain.rpartition(".")[0] or plain)
    if stem.startswith("lib"):
        yield stem.removeprefix("lib")


def _variants(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.casefold()):
        plain = word.strip(".-")
        yield plain
        yield plain.rpartition(".")[0] or plain
        yield plain.partition(".")[0]
        if word.startswith("-l"):
            yield word[2:]


def _folders(path: str) -> Iterator[str]:
    """The folders above a path, without the root."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(2, len(parts)))
