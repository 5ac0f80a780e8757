"""What the verifier's programs look for where no agent was: nothing of the agent stands there, pure.

`Lookups` are what a watched verification looked for, `missed_paths` those in which the environment stays as built where
the agent's system changes are kept: what is missing stays missing, and settings that exist stay as they are. No list
of names is needed for that: whatever a program looks for by itself, it also looks for on the environment as built.
What the task or the verifier names is exempt, because it may be the work, unless the environment itself has one of
that name.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
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
_KEPT: Final = re.compile(
    r"/etc/((passwd|group|g?shadow|sub[ug]id)-?|shells|(gai|host|ldap|sysctl)\.conf|sysctl\.d/.*|fstab|mtab|hosts\..*"
    r"|crontab|(anacrontab|cron|init|rc\w?|network|netplan|systemd)(\.\w+)?/.*|networks|protocols|services|rpc|machine-id"
    r"|security/(access|limits|time)\.(conf|d/.*)|mailname|motd|issue(\.net)?|exports|default/(locale|keyboard))"
)
"""The same among settings that the environment has: accounts, mounts, services, limits and the network."""
_SYSTEM_SETTINGS: Final = ("/etc/", "/opt/")
_LEAST: Final = 4
"""How long the beginning of a word must be to speak of a program."""
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
_PROGRAMS: Final = frozenset({"bin", "games", "libexec", "sbin"})
"""Names of folders in which programs are."""
_INSTALLED: Final = re.compile(r"/(bin|lib|sbin|usr|root/\.|home/[^/]+/\.).*")
"""Where the system is as built, or as the verifier made it, if no system change of the agent is seen."""
_REFERENCES: Final = ("/logs/", "/tests/", "/tmp/", "/verifier/")  # noqa: S108 - a place in a sandbox
"""Where a verifier has programs that it does not install."""
_LOADED: Final = re.compile(r"(/usr)?/lib(32|64|x32)?/([^/]+-linux-[^/]+/)?[^/]+")
"""Where the loader looks for libraries that its cache does not have."""
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
    settings: frozenset[str] = frozenset()
    """What exists in `/etc` and `/opt` and was looked for by programs that were not given its name."""
    given: frozenset[str] = frozenset()
    """Paths that a solution of the package adds or changes: whatever looks for them, they may be the work."""

    @property
    def of_the_work(self) -> Lookups:
        """What such look-ups say where the agent's work and data are, and the system is as built."""
        installed = frozenset(path for path in self.executed if _INSTALLED.fullmatch(path))
        return replace(self, found=frozenset(), executed=installed)

    @property
    def of_a_solution(self) -> Lookups:
        """What they say of a system to which a solution belongs: nothing of what the environment has."""
        return replace(self, found=frozenset(), executed=frozenset(), settings=frozenset())

    def __or__(self, other: Lookups) -> Lookups:
        return Lookups(*(getattr(self, part.name) | getattr(other, part.name) for part in fields(self)))


@dataclass(frozen=True, slots=True)
class Named:
    """The words and paths of texts. Those of the task alone say what the work is."""

    words: frozenset[str] = frozenset()
    paths: frozenset[str] = frozenset()
    task: frozenset[str] = frozenset()
    """Words of the task."""
    solution: frozenset[str] = frozenset()
    """Words and paths of the package's own solution."""

    @classmethod
    def in_texts(cls, task: str, others: Iterable[str] = (), solution: Iterable[str] = ()) -> Named:
        texts = [task, *others]
        task_words = frozenset(_variants(task))
        solved = frozenset(word for text in solution for word in (*_variants(text), *_paths(text)))
        paths = frozenset(path for text in texts for path in _paths(text))
        return cls(task_words.union(*map(_variants, texts[1:])), paths, task_words, solved)


@dataclass(frozen=True, slots=True)
class MissedPaths:
    """Paths at which nothing of the agent is seen, and the folders above them."""

    paths: frozenset[str] = frozenset()
    above: frozenset[str] = frozenset()
    listed: frozenset[str] = frozenset()
    """Folders of software to which the agent adds no file, because a program reads all that is there."""
    settings: frozenset[str] = frozenset()
    """Settings that exist and stay as built, and the folders above them."""
    libraries: frozenset[str] = frozenset()
    """Names of shared libraries that are missing wherever the loader looks."""
    exempt: Exemption | None = field(default=None, repr=False)

    def answers(self, change: Change) -> bool:
        """Whether a change is such a path, or a link or file on the way to one.

        A folder is none: what programs look for in it counts, and the rest may be what was installed.
        """
        if change.path in self.settings and _replaces(change):
            return True
        if change.kind == "deleted" or change.type == "directory":
            return False
        if change.path in self.paths or change.path in self.above:
            return True
        folder, _, name = change.path.rpartition("/")
        if name in self.libraries and change.kind == "added" and folder.startswith(_SOFTWARE):
            return True
        return folder in self.listed and not (self.exempt and self.exempt.covers(f"{folder}//{name}"))

    def leaves(self, changes: Iterable[Change]) -> bool:
        """Whether the agent left anything where programs look, beside what is withheld and what may be the work."""
        return any(self._may_be_found(change) and not self.answers(change) for change in changes)

    def _may_be_found(self, change: Change) -> bool:
        """Whether it is something that the agent added to the system or a home, or a setting that it changed."""
        if change.kind == "added":
            return change.type != "directory" and _is_place(change.path, "/")
        is_setting = _replaces(change) and change.path.startswith(_SYSTEM_SETTINGS)
        return is_setting and not (self.exempt and self.exempt.covers_setting(change.path))

    def answers_more(self, than: MissedPaths, changes: Iterable[Change]) -> bool:
        """Whether some of the changes are withheld only by this."""
        return any(self.answers(change) and not than.answers(change) for change in changes)


def _replaces(change: Change) -> bool:
    """Whether something that existed is another thing now, or gone."""
    return change.kind == "deleted" or (change.kind == "changed" and change.type != "directory")


@dataclass(frozen=True)
class Exemption:
    """Decides which paths may be the work although programs look for them."""

    lookups: Lookups
    named: Named
    software: frozenset[str]
    """Names of files that the environment has where programs look for them."""
    executed: Mapping[str, frozenset[str]] = field(default_factory=dict, compare=False)
    """The paths of programs that ran, by name."""

    def covers(self, missed: str) -> bool:
        path = missed.replace("//", "/")
        if path in self.lookups.given or path in self.named.paths:
            return True
        if _OF_THE_MACHINE.fullmatch(path) or self._is_in_named_folder(path):
            return True
        name = path.rpartition("/")[2]
        if self._stands_before_another(path, name):
            return False
        if missed in self.lookups.asked:
            return True
        if path.startswith(_SETTINGS) and not self.named.task.isdisjoint(_names(name)):
            return True
        if name in self.software:
            return False
        library = _library(name)
        if library is not None and library in self.named.task:
            return True
        return any(word in self.named.words and word not in self.software for word in _names(name))

    def covers_setting(self, path: str) -> bool:
        """Whether a setting that exists may be the work: the task, its solution or the verifier names it, or the task
        a program that it belongs to."""
        if path in self.lookups.given or path in self.named.paths or path in self.named.solution:
            return True
        if _OF_THE_MACHINE.fullmatch(path) or _KEPT.fullmatch(path) or self._is_in_named_folder(path):
            return True
        if any(folder in self.named.solution for folder in _folders(path) if folder.startswith(_SYSTEM_SETTINGS)):
            return True
        parts = path.casefold().split("/")[2:]
        if any(not self.named.task.isdisjoint(_names(part)) for part in parts) or self._is_of_the_task(parts[0]):
            return True
        ends = {parts[0], parts[-1]}
        return not ends.isdisjoint(self.named.solution) or not ends.isdisjoint(self.named.words - self.software)

    def _is_of_the_task(self, owner: str) -> bool:
        """Whether the task speaks of whom a setting belongs to by a longer or shorter name: `apache2` as Apache."""
        plain = owner.partition(".")[0]
        words = (word for word in self.named.task if len(word) >= _LEAST)
        return len(plain) >= _LEAST and any(word.startswith(plain) or plain.startswith(word) for word in words)

    def _stands_before_another(self, path: str, name: str) -> bool:
        """Whether a program would be found there in the place of one that ran from elsewhere. A program of the verifier
        may have the name of one that the task is about, to compare them."""
        folder = path.rpartition("/")[0]
        others = self.executed.get(name, frozenset()) - {path}
        if not others or not (folder.rpartition("/")[2] in _PROGRAMS or folder in self.executed_in):
            return False
        return not all(other.startswith(_REFERENCES) for other in others) or name.casefold() not in self.named.task

    @functools.cached_property
    def executed_in(self) -> frozenset[str]:
        """Folders from which programs ran."""
        return frozenset(path.rpartition("/")[0] for path in self.lookups.executed)

    def _is_in_named_folder(self, path: str) -> bool:
        folders = (folder for folder in _folders(path) if folder.startswith(_NAMED_FOLDERS))
        return any(folder in self.named.paths and not _is_home(folder) for folder in folders)


@functools.lru_cache(maxsize=32)
def missed_paths(lookups: Lookups, named: Named, workdir: str) -> MissedPaths:
    """The paths that stay as built: missing."""
    software = frozenset(path.rpartition("/")[2] for path in lookups.found if path.startswith(_SOFTWARE))
    exempt = Exemption(lookups, named, software, _by_name(lookups.executed, workdir))
    looked_for = (*lookups.missed, *lookups.asked)
    kept = [path for path in looked_for if _is_place(path.replace("//", "/"), workdir) and not exempt.covers(path)]
    paths = frozenset(path.replace("//", "/") for path in kept)
    above = frozenset(folder for path in paths for folder in _folders(path)) - named.paths
    listed = frozenset(path for path in _own_listed(lookups.listed, named) if not _is_in(path, workdir))
    listed |= {path for path in paths if path.rpartition("/")[0] in listed}  # looked for in one of them
    names = (path.rpartition("/")[2] for path in paths if _LOADED.fullmatch(path))
    libraries = frozenset(name for name in names if _SHARED_LIBRARY.fullmatch(name))
    return MissedPaths(paths, above, listed, _own_settings(lookups, exempt, workdir), libraries, exempt)


def _by_name(executed: Iterable[str], workdir: str) -> dict[str, frozenset[str]]:
    """Paths of programs by name, without those of the work."""
    found: dict[str, set[str]] = {}
    for path in executed:
        if not _is_in(path, workdir):
            found.setdefault(path.rpartition("/")[2], set()).add(path)
    return {name: frozenset(paths) for name, paths in found.items()}


def _own_settings(lookups: Lookups, exempt: Exemption, workdir: str) -> frozenset[str]:
    """Settings that programs find by themselves, and not by searching all that is there."""
    found = set()
    for spelled in lookups.settings:
        path = posixpath.normpath(spelled)
        above = [folder for folder in _folders(path) if folder.count("/") > 1]
        searched = lookups.listed.issuperset([*above, f"/{path.split('/')[1]}"])
        if path.startswith(_SYSTEM_SETTINGS) and not _is_in(path, workdir) and not searched:
            found |= {item for item in (path, *above) if not exempt.covers_setting(path)}
    return frozenset(item for item in found if not workdir.startswith(f"{item}/"))


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
    parts: dict[bytes, set[str]] = {kind: set() for kind in (b"-", b"~", b"+", b"=", b"@", b"<")}
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
    if _is_in(path, workdir):
        return False
    if _replaces(change) and path.startswith(_SYSTEM_SETTINGS):
        return True
    if change.kind == "deleted" or change.type == "directory":
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


def _paths(text: str) -> Iterator[str]:
    return (path.rstrip("/.") for path in _PATH.findall(text))


def _folders(path: str) -> Iterator[str]:
    """The folders above a path, without the root."""
    parts = path.split("/")
    return ("/".join(parts[:count]) for count in range(2, len(parts)))
