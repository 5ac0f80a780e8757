"""What a verifier makes itself, where nothing was: nothing of the agent stands there in its place, pure.

A verifier copies its tests into the working folder, makes a virtual environment, clones, builds. If something is in
that place, the copy lands elsewhere, or a program keeps what it finds, and the verifier continues with the agent's.
`MadePlaces` are the paths that the same verifier made on the environment as built, where no agent was. A verifier may
stop there before it makes anything. So a state that scores is also verified without what has a name that the verifier
uses and the task does not (`suspects`): what the verifier makes then is its own too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from benchflow.sandbox.protocol import Change

_OF_EVERYBODY: Final = ("/dev/shm/", "/tmp/", "/var/tmp/")  # noqa: S108 - nothing is written there
"""Where a kernel may refuse even root to write to a file of another user."""
_OF_PACKAGES: Final = ("/bin/", "/etc/", "/lib", "/sbin/", "/usr/", "/var/lib/")
"""Where package managers install. Files of a package that agent and verifier both install are not taken from it: its
manager would still call it installed. Other rules say which programs come first there."""
_OF_REWARDS: Final = "/logs/verifier"
"""An empty folder that every agent finds."""
_BINARY: Final = ("7f454c46", "213c6172", "cafebabe", "0061736d", "4243c0de")
"""How programs and parts of programs begin: ELF, archives of objects, classes of Java, WebAssembly, bitcode."""
_EXECUTABLE: Final = 0o111


@dataclass(frozen=True, slots=True)
class MadePlaces:
    """Paths that a verifier made. A file is anything but a folder."""

    files: frozenset[str] = frozenset()
    folders: frozenset[str] = frozenset()
    replaced: frozenset[str] = frozenset()
    """Files that were there as built, and that it wrote."""
    programs: frozenset[str] = frozenset()
    """Those of the files that are programs or parts of programs: what builds them keeps one that is newer."""
    _above: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        paths = (*self.files, *self.folders, *self.replaced)
        above = frozenset(str(folder) for path in paths for folder in PurePosixPath(path).parents)
        object.__setattr__(self, "_above", self.folders | above)

    def __or__(self, other: MadePlaces) -> MadePlaces:
        parts = ("files", "folders", "replaced", "programs")
        return MadePlaces(*(getattr(self, name) | getattr(other, name) for name in parts))

    def has_file(self, path: str) -> bool:
        return path in self.files or path in self.replaced or path in self._above

    def taken_by(self, change: Change, *, as_root: bool) -> bool:
        """Whether a change of the agent stands where the verifier, working `as_root`, would make something.

        A plain file in the place of a plain file is simply written again, unless a program may keep it: in a folder
        that the verifier makes too, or if it is a program.
        """
        path = change.path
        if change.kind == "deleted":
            return False
        if change.type == "directory":
            return path in self.files or path in self.replaced
        if path in self._above:
            return True
        if path not in self.files:
            return path in self.replaced and change.type != "file"
        kept = path.rpartition("/")[0] in self.folders or path in self.programs
        return change.type != "file" or kept or path.startswith(_OF_EVERYBODY) or not as_root


@dataclass(frozen=True, slots=True)
class MadeByVerifier:
    """The places of one verifier, and which of them may be the work all the same."""

    places: MadePlaces = field(default_factory=MadePlaces)
    own: frozenset[str] = frozenset()
    """Names of the verifier's files: what it copies."""
    asked: frozenset[str] = frozenset()
    """Paths that the task speaks of, absolute, but for the working folder and those above it."""
    words: frozenset[str] = frozenset()
    """Names of files that the task speaks of."""
    used: frozenset[str] = frozenset()
    """Words of the verifier's files, in lower case."""
    as_root: bool = True
    workdir: str = "/app"
    suspected: frozenset[str] = frozenset()
    """Paths that are withheld to see what the verifier makes without them."""

    def takes(self, change: Change) -> bool:
        """Whether a change is withheld because the verifier makes what is there.

        A file that the task asks for stays, unless it is called like a file of the verifier's: that is a copy then.
        """
        path = change.path
        if path in self.suspected:
            return True
        if self._is_of_packages(path):
            return False
        if change.type == "file" and path.rpartition("/")[2] in self.own:
            return change.kind != "deleted" and self.places.has_file(path)
        taken = self.places.taken_by(change, as_root=self.as_root)
        return taken and not (change.type == "file" and self._is_asked_for(path))

    def suspects(self, changes: Sequence[Change]) -> list[frozenset[str]]:
        """What a verifier could keep instead of its own, by names that the task does not use: first those of the
        verifier's files, then those in its texts too. Each is to be left out on its own: with less left out, more of
        the work is there, and with more, less is in the verifier's way."""
        folders = frozenset(change.path for change in changes if change.type == "directory" and change.kind == "added")
        kept = [change.path for change in changes if self._may_be_kept(change, folders)]
        named = [path for path in kept if not self._is_asked_for(path)]
        own = frozenset(path for path in named if path.rpartition("/")[2] in self.own)
        used = own.union(path for path in named if path.rpartition("/")[2].casefold() in self.used)
        return [group for group in dict.fromkeys((own, used)) if group]

    def _may_be_kept(self, change: Change, folders: frozenset[str]) -> bool:
        if change.kind == "deleted" or self._is_of_packages(change.path) or change.path.startswith(_OF_REWARDS):
            return False
        if change.type != "file":
            return True
        executable = change.rights is None or bool(change.rights.mode & _EXECUTABLE)
        inner = change.path.rpartition("/")[0] in folders
        added = change.kind == "added" and (inner or executable)
        return added or change.path.startswith(_OF_EVERYBODY) or not self.as_root

    def _is_of_packages(self, path: str) -> bool:
        """The working folder can be in `/usr` too, and is the agent's all the same."""
        return path.startswith(_OF_PACKAGES) and not path.startswith(f"{self.workdir}/")

    def _is_asked_for(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if path in self.asked or name in self.own:
            return path in self.asked
        return name in self.words or any(str(folder) in self.asked for folder in PurePosixPath(path).parents)


def made_places(before: Iterable[Change], after: Iterable[Change], begins: Mapping[str, str]) -> MadePlaces:
    """What was made between two lists of changes. `begins` has the first bytes of files, in hexadecimal digits."""
    there = frozenset(change.path for change in before)
    made = [change for change in after if change.path not in there and change.kind != "deleted"]
    added = [change for change in made if change.kind == "added"]
    files = [change for change in added if change.type != "directory"]
    return MadePlaces(
        frozenset(change.path for change in files),
        frozenset(change.path for change in added if change.type == "directory"),
        frozenset(change.path for change in made if change.kind == "changed" and change.type != "directory"),
        frozenset(change.path for change in files if _is_program(change, begins.get(change.path, ""))),
    )


def _is_program(change: Change, beginning: str) -> bool:
    executable = change.rights is not None and bool(change.rights.mode & _EXECUTABLE)
    return executable or beginning.startswith(_BINARY)
