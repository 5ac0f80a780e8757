"""What the verifier's programs look for in vain where no agent was: nothing of the agent stands there, pure.

`Lookups` are what a watched verification looked for, `missed_paths` those in which the environment stays as built where
the agent's system changes are kept. No list of names is needed for that: whatever a program looks for by itself, it
also looks for on the environment as built. What the task or the verifier names is exempt, because it may be the work,
unless the environment itself has one of that name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Final

from benchflow.sandbox.protocol import Change

MOST: Final = 400_000
"""How many paths are kept."""
_PLACES: Final = ("/bin/", "/etc/", "/home/", "/lib", "/opt/", "/root/", "/sbin/", "/usr/")
_STATE: Final = re.compile(r"/var/lib/(apt|dpkg|gems|ghc|javascript|pip|python|texmf)/.*")
"""Elsewhere is data, which a verifier looks for because it is the work."""
_OF_THE_MACHINE: Final = re.compile(
    r"/etc/(adjtime|hostname|hosts|iproute2/.*|localtime|resolv\.conf|ssl/certs/.*|timezone)"
    r"|/usr/share/zoneinfo/.*|/usr/(lib|share)/locale/.*"
)
"""Facts about a machine: no program runs them, and a task speaks of them by other names. Languages have a rule of
their own."""
_SETTINGS: Final = ("/etc/", "/home/", "/root/")
_NAMED_FOLDERS: Final = (*_SETTINGS, "/opt/")
_SOFTWARE: Final = ("/bin/", "/lib", "/opt/", "/sbin/", "/usr/")
_HAVE_FOLDERS: Final = ("/lib", "/opt/", "/usr/", "/var/lib/")
_FILE: Final = re.compile(r".*(/s?bin/.*|\.[a-z_]\w*)", re.DOTALL)
_FLAT: Final = frozenset(
    f"{root}{folder}"
    for root in ("", "/usr", "/usr/local")
    for folder in ("", "/games", "/include", "/lib", "/lib32", "/lib64", "/libexec", "/libx32", "/share", "/src")
)
_COLLECTION: Final = re.compile(
    r"s?bin|(site|dist)-packages|node_modules|gems|specifications|(site-)?library|doc|man\d?|.*-linux-.*"
)
_SHARED_LIBRARY: Final = re.compile(r"lib(.+?)\.so(\..*)?")
_WORD: Final = re.compile(r"[\w.+@-]+")
_PATH: Final = re.compile(r"/[\w./+@-]+")


@dataclass(frozen=True, slots=True)
class Lookups:
    """What programs looked for. In a path that does not exist, `//` is where that begins."""

    missed: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    """Paths that do not exist either, and that the verifier's own script or its arguments name."""
    found: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """Folders that were listed, or would have been if they existed."""
    executed: frozenset[str] = frozenset()
    given: frozenset[str] = frozenset()
    """Paths that a solution of the package adds: whatever looks for them, they may be the work."""

    def __or__(self, other: Lookups) -> Lookups:
        return Lookups(*(getattr(self, part.name) | getattr(other, part.name) for part in fields(self)))


@dataclass(frozen=True, slots=True)
class Named:
    """The words and paths of texts. Those of the task alone say what the work is."""

    words: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    task: frozenset[str] = frozenset()
    """Words of the task."""

    @classmethod
    def in_texts(cls, task: str, others: Iterable[str] = ()) -> Named:
        texts = [task, *others]
        paths = frozenset(path.rstrip("/.") for text in texts for path in _PATH.findall(text))
        task_words = frozenset(_variants(task))
        return cls(task_words.union(*map(_variants, texts[1:])), paths, task_words)


@dataclass(frozen=True, slots=True)
class MissedPaths:
    """Paths at which nothing of the agent is seen, and the folders above them."""

    paths: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """Folders of software to which the agent adds no file, because a program reads all that is there."""
    exempt: Exemption | None = field(default=None, repr=False)

    def answers(self, change: Change) -> bool:
        """Whether a change is such a path, or a link or file on the way to one.

        A folder is none: what programs look for in it counts, and the rest may be what was installed.
        """
        if change.kind == "deleted" or change.type == "directory":
            return False
        if change.path in self.paths or change.path in self.above:
            return True
        folder, _, name = change.path.rpartition("/")
        return folder in self.listed and not (self.exempt and self.exempt.covers(f"{folder}//{name}"))

    def leaves(self, changes: Iterable[Change]) -> bool:
        """Whether the agent added anything where programs look, beside what is withheld."""
        return any(_may_be_found(change) and not self.answers(change) for change in changes)

    def answers_more(self, than: MissedPaths, changes: Iterable[Change]) -> bool:
        """Whether some of the changes are withheld only by this."""
        return any(self.answers(change) and not than.answers(change) for change in changes)


def _may_be_found(change: Change) -> bool:
    """Whether it is something that the agent added to the system or a home."""
    return change.kind == "added" and change.type != "directory" and _is_place(change.path, "/")


@dataclass(frozen=True, slots=True)
class Exemption:
    """Decides which paths may be the work although programs look for them."""

    lookups: Lookups
    named: Named
    software: frozenset[str]
    """Names of files that the environment has where programs look for them."""

    def covers(self, missed: str) -> bool:
        path = missed.replace("//", "/")
        if missed in self.lookups.asked or path in self.lookups.given or path in self.named.paths:
            return True
        if _OF_THE_MACHINE.fullmatch(path) or self._is_in_named_folder(path):
            return True
        name = path.rpartition("/")[2]
        if path.startswith(_SETTINGS) and not self.named.task.isdisjoint(_names(name)):
            return True
        if name in self.software:
            return False
        library = _library(name)
        if library is not None and library in self.named.task:
            return True
        return any(word in self.named.words and word not in self.software for word in _names(name))

    def _is_in_named_folder(self, path: str) -> bool:
        folders = (folder for folder in _folders(path) if folder.startswith(_NAMED_FOLDERS))
        return any(folder in self.named.paths and not _is_home(folder) for folder in folders)


@functools.lru_cache(maxsize=32)
def missed_paths(lookups: Lookups, named: Named, workdir: str) -> MissedPaths:
    """The paths that stay as built: missing."""
    software = frozenset(path.rpartition("/")[2] for path in lookups.found if path.startswith(_SOFTWARE))
    exempt = Exemption(lookups, named, software)
    kept = [path for path in lookups.missed if _is_place(path.replace("//", "/"), workdir) and not exempt.covers(path)]
    paths = frozenset(path.replace("//", "/") for path in kept)
    above = frozenset(folder for path in paths for folder in _folders(path)) - named.paths
    listed = frozenset(path for path in _own_listed(lookups.listed, named) if not _is_in(path, workdir))
    listed |= {path for path in paths if path.rpartition("/")[0] in listed}  # looked for in one of them
    return MissedPaths(paths, above, listed, exempt)


def _own_listed(listed: frozenset[str], named: Named) -> Iterator[str]:
    """Folders of software that a program lists by itself: not collections, in which each entry is a piece of software
    of its own, and not those that are passed when a tree that the verifier names, or all software, is searched."""
    for spelled in listed:
        path = spelled.replace("//", "/")
        if not path.startswith(_SOFTWARE) or path in _FLAT or _COLLECTION.fullmatch(path.rpartition("/")[2]):
            continue
        above = list(_folders(path))
        top = next((place for place, folder in enumerate(reversed(above)) if folder in _FLAT), len(above) - 1)
        searched = all(folder in listed for folder in above[len(above) - 1 - top :])
        if not searched and named.paths.isdisjoint([path, *above]):
            yield path


def missed_folders(lookups: Lookups, workdir: str) -> list[str]:
    """Missed paths that could be folders, in which programs would look for more."""
    paths = (path.replace("//", "/") for path in lookups.missed)
    kept = (path for path in paths if path.startswith(_HAVE_FOLDERS) and _is_place(path, workdir))
    return sorted(path for path in kept if not _FILE.fullmatch(path))


def read_lookups(data: bytes) -> tuple[Lookups, bool]:
    """The records of the program `missed`, and whether they are all: it can be refused, or have too much to say.

    A verifier finds at least its shell; without any record nothing was seen.
    """
    parts: dict[bytes, set[str]] = {b"-": set(), b"~": set(), b"+": set(), b"=": set(), b"@": set()}
    whole = True
    for record in data.split(b"\0")[:-1]:
        if record[:1] in parts:
            parts[record[:1]].add(record[1:].decode("utf-8", "surrogateescape"))
        else:
            whole = False
    lookups = Lookups(*map(frozenset, parts.values()))
    return lookups, whole and bool(lookups.found) and len(lookups.missed) <= MOST


def may_be_looked_for(change: Change, workdir: str) -> bool:
    """Whether `MissedPaths` of any verifier could answer a change: if not, nobody has to know what it looks for."""
    path = change.path
    if change.kind == "deleted" or change.type == "directory" or _is_in(path, workdir):
        return False
    return path.startswith((*_PLACES, "/var/lib/")) or path.count("/") == 1 or path == "/var/lib"


def _is_place(path: str, workdir: str) -> bool:
    """Whether programs, libraries or settings are there; the agent's own folder is its work."""
    if _is_in(path, workdir) or workdir.startswith(f"{path}/"):
        return False
    return path.startswith(_PLACES) or path.count("/") == 1 or bool(_STATE.match(path))


def _is_in(path: str, workdir: str) -> bool:
    return workdir != "/" and (path == workdir or path.startswith(f"{workdir}/"))


def _is_home(folder: str) -> bool:
    return folder == "/root" or (folder.startswith("/home/") and folder.count("/") == 2)


def _names(name: str) -> Iterator[str]:
    """How a text may speak of a file: by its name, or without its endings."""
    plain = name.casefold().removeprefix(".")
    yield from (plain, plain.partition(".")[0], plain.rpartition(".")[0] or plain)


def _library(name: str) -> str | None:
    """How a task may speak of a shared library."""
    found = _SHARED_LIBRARY.fullmatch(name.casefold())
    return found[1] if found else None


def _variants(text: str) -> Iterator[str]:
    for word in _WORD.findall(text.casefold()):
        plain = word.strip(".-")
        if not plain:
            continue
        yield from (plain, plain.rpartition(".")[0] or plain, plain.partition(".")[0])
        if word.startswith("-l"):  # for the linker
            yield f"lib{word[2:]}"


def _folders(path: str) -> Iterator[str]:
    """The folders above a path, without the root."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(2, len(parts)))
