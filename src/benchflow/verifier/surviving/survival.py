"""Which changes of an agent survive into verification: `withhold(changes, rules)`, pure.

The verifier sees withheld paths as the environment was built, and everything else as the agent left it. Withheld is
what programs find without being told to; what only Python finds (modules, plugins, settings of pytest) stays visible as
data, because the interpreter hook of the ground folder settles it. Names are compared case-folded and normalised.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change
from benchflow.verifier.surviving.found_first import is_folder, is_found_first, is_in_go_module, is_of_language
from benchflow.verifier.surviving.made_places import MadeByVerifier
from benchflow.verifier.surviving.missed_lookups import MissedPaths
from benchflow.verifier.surviving.start_files import (
    NAME_SERVICES,
    is_system_start,
    leads_to_home_start,
    leads_to_system_start,
    named_after,
    of_home_start,
    reads_by_itself,
)

PYTEST_FILES: Final = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
"""Files that configure pytest as a whole."""

SETTINGS: Final = PYTEST_FILES | {"pyproject.toml", "setup.cfg", "tox.ini", "entry_points.txt", ".coveragerc"}
"""Files that the interpreter hook settles: they stay visible, and act as the environment was built."""

_STARTUP_MODULES: Final = frozenset({"sitecustomize", "usercustomize"})
_MODULE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\.pyc?|(\.[A-Za-z0-9_-]+)?\.so)")
_BYTECODE: Final = "__pycache__"
_PERL_BYTECODE: Final = ".pmc"
"""What Perl loads instead of the module of that name beside it."""
_PROMPT: Final = "/instruction.md"
"""Where a rollout writes the prompt, before the agent starts."""
_HOME_FILES: Final = frozenset({"bin"})
_HIDDEN_FOLDERS: Final = frozenset({".cache", ".config", ".local"})
_ENDS_OF_SETTINGS: Final = ("rc", "_config")
_LIBRARY_OF_R: Final = re.compile(r"R(/[^/]+-library(/|$)|$)")
"""Where R looks for packages first, in a home folder."""

Reason = Literal[
    "scope",
    "system",
    "path",
    "lookup",
    "home",
    "above",
    "startup",
    "hook",
    "option",
    "target",
    "made",
    "bytecode",
    "link",
    "special",
]

REASONS: Final[dict[Reason, str]] = {
    "scope": "belongs to the verifier",
    "system": "is part of the system",
    "path": "is in a folder where programs or libraries are looked up",
    "lookup": "is something that programs of the verifier look for by themselves",
    "home": "is a setting that shells and tools read",
    "above": "is in a folder above the working folder, where tools look for their settings",
    "startup": "is code or a setting that programs read when they start",
    "hook": "controls a test runner or a repository",
    "option": "has a name that programs take for an option",
    "target": "is a file that a makefile of the verifier makes",
    "made": "is in the place of something that the verifier makes",
    "bytecode": "is bytecode",
    "link": "is a link to a place outside the working folder",
    "special": "is neither a file, a folder nor a link",
}

SCOPE: Final = ("/verifier", "/tests", "/logs/verifier", "/run/verifier-ground", "/oracle", "/solution")
"""Paths that belong to verification and proof; an agent can never put anything there."""

PROGRAMS: Final = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin", "/usr")
"""Where the programs and libraries of a system are."""
SYSTEM: Final = (*PROGRAMS, "/boot", "/dev", "/etc", "/proc", "/run", "/sys", "/var/cache", "/var/spool")
"""Folders of the system, unless the agent's working folder is there."""
_SUITES: Final = "/opt"
"""Where each folder is one piece of software: the environment's are as built, one that the agent made is data."""
_STATE: Final = "/var/lib"
_DATABASES: Final = frozenset(
    {
        "alternatives", "apk", "apt", "dbus", "dpkg", "gems", "ghc", "javascript", "locales", "pam", "pacman", "pip",
        "polkit-1", "python", "rpm", "snapd", "systemd", "texmf", "ucf",
    }
)  # fmt: skip
"""Folders of `/var/lib` in which package managers and interpreters keep what they look up."""
_LIBRARIES_OF_STATE: Final = ("/var/lib/gems", "/var/lib/ghc", "/var/lib/javascript", "/var/lib/python")
SOFTWARE_PARTS: Final = (
    "bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "jre", "jmods", "modules", "share", "src",
)  # fmt: skip
"""Folders of programs and libraries of a piece of software; the rest of it may be settings and data."""
_SUITE: Final = re.compile(rf"/opt/([^/]+/){{1,3}}({'|'.join(SOFTWARE_PARTS)})/")
_NODE_MODULES: Final = "node_modules"
"""Where Node looks up modules for any script, in every folder above it."""
_MAKEFILES: Final = frozenset({"makefile", "rakefile", "rakefile.rb"})
_NODE_PROGRAMS: Final = ".bin"
"""Where it looks up the programs of a script before those of the system."""
_CMAKE_CACHE: Final = "cmakecache.txt"
_LINKS_STAY_IN: Final = ("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/usr")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a package allows the changes of its agent to do."""

    workdir: str
    scope: tuple[str, ...] = SCOPE
    """Places of verification, where nothing survives."""
    lookup: tuple[str, ...] = ()
    """Folders where the environment looks up programs and libraries."""
    built: tuple[str, ...] = ()
    """Folders of tools that the environment built, wherever they are."""
    software: tuple[str, ...] = ()
    """What those programs consist of elsewhere, except where the task names a path."""
    starts: tuple[str, ...] = ()
    """What variables of the environment give to programs for their start."""
    user_base: str | None = None
    """Where Python has the folders of a user, if a variable of the environment says so."""
    programs: frozenset[str] = frozenset()
    """Names of programs and libraries that the environment was built with."""
    keep_system: bool = False
    keep_hooks: bool = False
    keep_all: bool = False
    """Whether everything survives outside the places of verification itself."""
    expected: frozenset[str] = frozenset()
    """File names that the task itself mentions."""
    named: frozenset[str] = frozenset()
    """Absolute paths that the task itself mentions."""
    mounted: tuple[str, ...] = ()
    """Mount points, which appear as changes but are not."""
    home: str | None = None
    """The home of the verifier's user as built."""
    homes: tuple[str, ...] = ()
    """Homes of other accounts as built."""
    early: frozenset[str] = frozenset()
    """Modules that interpreters of the environment import before their hook."""
    missed: MissedPaths = field(default_factory=MissedPaths)
    """What the verifier's programs look for in vain on the environment as built."""
    made: MadeByVerifier = field(default_factory=MadeByVerifier)
    """What the verifier makes on the environment as built."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """A change that the verifier does not see, including everything below it."""

    path: str
    kind: str
    reason: Reason

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def withhold(changes: Iterable[Change], rules: Rules) -> list[Withheld]:
    """The changes that do not survive, the outermost of each tree, by path."""
    ordered = sorted(changes, key=lambda change: change.path.split("/"))
    judge = _Judge(rules, ordered)
    found: list[Withheld] = []
    for change in ordered:
        if (found and below(change.path, found[-1].path)) or leads_to_mount(change, rules):
            continue
        reason = judge.reason(change)
        if reason is not None:
            found.append(Withheld(change.path, change.kind, reason))
    return found


def leads_to_mount(change: Change, rules: Rules) -> bool:
    """Whether a folder appears as a change because something is mounted in it."""
    return change.type != "symlink" and any(below(place, change.path) for place in rules.mounted)


def below(path: str, *folders: str) -> bool:
    """Whether `path` is one of the folders or is inside one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def plain(name: str) -> str:
    """A name as rules compare it: normalised and case-folded."""
    return unicodedata.normalize("NFKC", name).casefold()


class _Judge:
    """The rules, with what they need to know of all changes together."""

    def __init__(self, rules: Rules, changes: Sequence[Change]) -> None:
        self.rules = rules
        self.touched = frozenset(change.path for change in changes)
        self.added = PathSet(change.path for change in changes if change.kind == "added" and change.type == "directory")
        """Folders that the agent made."""
        self.tools = (*rules.lookup, *rules.built, f"/{_NODE_MODULES}")
        self.programs = (*self.tools, *rules.software)
        self.work = tuple(path for path in rules.named if below(path, *rules.software))
        """Paths within software that the task names."""
        self.above = _folders_above(rules.workdir)
        self.mentioned = frozenset(plain(word).removeprefix(".") for word in rules.expected)
        """Words of the task, as names of files and programs."""

    def reason(self, change: Change) -> Reason | None:
        path, rules = change.path, self.rules
        if below(path, *rules.scope):
            return "scope"
        ends = (*rules.scope, rules.workdir + "/")
        if change.type != "directory" and any(place.startswith(path + "/") for place in ends):
            return "scope"  # a link or file on the path to such a place
        if rules.keep_all:
            return None
        if change.type == "special":
            return "special"
        names = [plain(name) for name in path.split("/")[1:]]
        if _BYTECODE in names or names[-1].endswith(_PERL_BYTECODE):
            return "bytecode"
        if is_startup(names[-1]) or self._is_early(change, names):
            return "startup"
        if rules.starts and (below(path, *rules.starts) or self._redirects(change, rules.starts)):
            return "startup"
        if not _OF_GO.isdisjoint(names) and is_in_go_module(change, names, self.rules.workdir):
            return "path"
        reason = self._of_system(change, names) if rules.keep_system else self._of_place(change, names)
        reason = reason or self._of_verifier(change)
        if reason is None and not rules.keep_hooks and (below(path, rules.workdir) or not below(path, *SYSTEM)):
            reason = self._acting(change, names)
        if reason is None and change.type == "symlink" and change.kind != "deleted":
            reason = self._of_link(change)
        return reason

    def _of_verifier(self, change: Change) -> Reason | None:
        """What is known of the verifier itself, from runs without an agent."""
        if self.rules.missed.answers(change):
            return "lookup"
        return "made" if self.rules.made.takes(change) else None

    def _is_early(self, change: Change, names: list[str]) -> bool:
        """Whether Python would import this before its hook, from a folder that a verifier has in `PYTHONPATH`."""
        name = names[-1]
        if name in self.rules.expected or self.rules.keep_hooks:
            return False
        module = module_name(name)
        found = names[-2] if module == "__init__" and len(names) > 1 else module
        return found in self.rules.early or (change.type == "symlink" and name in self.rules.early)

    def _of_place(self, change: Change, names: list[str]) -> Reason | None:
        """Where the system, its interpreters and their settings are, everything is as built; elsewhere is data."""
        path, workdir = change.path, self.rules.workdir
        if self._is_of_programs(path) or self._redirects(change, self.programs):
            return "path"
        if below(path, workdir):
            own = is_usual_home(workdir) and _is_home_setting(path, workdir)
            return "home" if own or self._is_home_start(change, names) or self._is_in_home(change, names) else None
        if workdir.startswith(path + "/"):
            return None
        if below(path, *SYSTEM) or (below(path, _STATE) and _DATABASES.intersection(names[2:3])):
            return "system"
        if below(path, _SUITES):
            return None if self.added.covers("/".join(path.split("/")[:3])) else "system"
        home = self._home_of(path)
        if (self._is_home(home) and _is_home_setting(path, home)) or self._is_home_start(change, names):
            return "home"
        return "above" if self._is_above(change, names) else None

    def _is_of_programs(self, path: str) -> bool:
        """Whether programs or libraries of the environment are there, and the task does not say that it is the work."""
        return below(path, *self.tools) or (below(path, *self.rules.software) and not below(path, *self.work))

    def _home_of(self, path: str) -> str:
        """The home in which a path would be: the verifier's, wherever it is, or another one at the usual place."""
        own = self.rules.home
        return own if own is not None and own != "/" and below(path, own) else _usual_home_of(path)

    def _is_home(self, folder: str) -> bool:
        return is_usual_home(folder) or folder == self.rules.home

    def _is_in_home(self, change: Change, names: list[str]) -> bool:
        """Whether it is a setting in a home that is the working folder, or in it, where other hidden files are work."""
        home = self.rules.home
        if home is None or not below(change.path, home) or not below(home, self.rules.workdir) or is_folder(change):
            return False
        inner = names[home.count("/") :]
        if not inner or not inner[0].startswith(".") or inner[0] == ".git":
            return False
        if self.mentioned.intersection(name.removeprefix(".") for name in inner):
            return False
        of_program = len(inner) > 1 or inner[0].endswith(_ENDS_OF_SETTINGS)
        return inner[0] in _HIDDEN_FOLDERS or (of_program and named_after(inner) in self.rules.programs)

    def _redirects(self, change: Change, places: Sequence[str]) -> bool:
        """Whether a parent of such a place was removed or replaced."""
        gone = change.type != "directory" or change.kind == "deleted"
        return gone and any(below(place, change.path) for place in places)

    def _is_above(self, change: Change, names: list[str]) -> bool:
        """Whether programs that walk up from the working folder or from the verifier's come past this entry.

        Which names they look for is not known, so no file there survives that the task does not name by its path.
        """
        folder = change.path.rpartition("/")[0] or "/"
        if folder not in self.above or change.path in self.rules.named or change.path == _PROMPT:
            return False
        return change.type != "directory" or names[-1].startswith(".") or names[-1] == _NODE_MODULES

    def _of_system(self, change: Change, names: list[str]) -> Reason | None:
        """Programs and libraries as built, nothing before them, and what they read when they start."""
        path, added = change.path, change.kind == "added"
        of_programs = self._is_of_programs(path)
        if self._is_start_setting(change, names):
            return "startup"
        if self._redirects(change, self.programs):
            return "path"
        if _SUITE.match(path) and change.kind != "added" and not below(path, self.rules.workdir):
            return "path"
        of_system = below(path, *PROGRAMS, *_LIBRARIES_OF_STATE) and not below(path, self.rules.workdir)
        if not of_programs and not of_system:
            return None
        if not added:
            return "path" if change.type != "directory" or change.kind == "deleted" else None
        if path.rpartition("/")[2] in self.rules.programs and change.type != "directory":
            return "path"
        return "path" if self._is_found_first(path, names) or self._is_in_library(path, names) else None

    def _is_found_first(self, path: str, names: list[str]) -> bool:
        local = is_of_language(names) and not any("local" in word for word in self.mentioned)
        return local or is_found_first(path, names, self.added, self.rules.programs)

    def _is_start_setting(self, change: Change, names: list[str]) -> bool:
        """What programs read at their start, where they ask for names, and links on the path to either."""
        path = "/" + "/".join(names)
        if is_system_start(path) or below(path, *NAME_SERVICES) or self._redirects(change, NAME_SERVICES):
            return True
        if (_is_link(change) and leads_to_system_start(path)) or self._is_home_start(change, names):
            return True
        return not below(change.path, self.rules.workdir) and self._is_unmentioned_setting(change, names)

    def _is_unmentioned_setting(self, change: Change, names: list[str]) -> bool:
        """Whether it is a setting of a program as built, or one in a home, and the task speaks of neither.

        What the environment was built with in hidden folders of homes is as built, for libraries are among it.

        Settings have names that programs choose; so the names of the environment's own programs tell them apart.
        """
        home = self._home_of(change.path)
        inner = names[1 if names[0] == "etc" else home.count("/") :]
        if not inner or (names[0] != "etc" and not (self._is_home(home) and inner[0].startswith("."))):
            return False
        if self.mentioned.intersection(name.removeprefix(".") for name in inner if name != ".config"):
            return False
        if names[0] != "etc" and change.kind != "added":
            return not is_folder(change)
        if names[0] != "etc" and (inner[0] == ".config" or len(inner) == 1):
            return change.type != "directory"
        program = named_after(inner)
        return program is not None and program in self.rules.programs and program not in self.mentioned

    def _is_home_start(self, change: Change, names: list[str]) -> bool:
        """The same in a home, or in that of another account, which may be the work that the task mentions."""
        if self._is_python_start(change, names):
            return True
        home = self._home_of(change.path)
        if self._is_home(home) and _starts_home(change, names, home):
            return True
        if not self.rules.homes or names[-1].removeprefix(".") in self.mentioned:
            return False
        return any(below(change.path, home) and _starts_home(change, names, home) for home in self.rules.homes)

    def _is_in_library(self, path: str, names: list[str]) -> bool:
        """Whether a path is in the standard library of a language, or in a package that the environment was built with:
        programs read all that they find there."""
        parts = path.split("/")
        for depth, name in enumerate(names[:-1]):
            if name in _PACKAGES and not _is_above_packages(names, depth):
                inner = depth + 1 + names[depth + 1].startswith("@")
                return len(names) > inner + 1 and not self.added.covers("/".join(parts[: inner + 2]))
        whole = any(_WHOLE.fullmatch(name) for name in names[:-1]) or tuple(names[-3:-1]) in _READ_WHOLE
        return whole and not self.added.covers(path.rpartition("/")[0])

    def _is_python_start(self, change: Change, names: list[str]) -> bool:
        """What an interpreter of the environment reads at its start; a virtual environment of the agent has its own."""
        folder = change.path.rpartition("/")[0]
        lines = names[-1].endswith(".pth") and names[-2] in _SITES if len(names) > 1 else False
        base = self.rules.user_base
        of_user = names[-5:-3] == [".local", "lib"] or (base is not None and below(folder, base))
        if lines and (of_user or _SITE.fullmatch(folder)):
            return True  # of the user or the system; it does not matter who made the folder
        places = (*PROGRAMS, *self.programs)
        return (lines or names[-1] in _PYTHON_START) and below(folder, *places) and not self.added.covers(folder)

    def _acting(self, change: Change, names: list[str]) -> Reason | None:
        *parents, name = names
        if module_name(name) == "__main__" and not below(change.path, self.rules.workdir):
            return None if name in self.rules.expected else "startup"  # running a script of its folder's name runs it
        if name == _CMAKE_CACHE and not below(change.path, self.rules.workdir):
            return None if name in self.mentioned else "startup"  # it names programs, and the verifier builds there
        if name.startswith("-") and change.kind == "added" and name not in self.rules.expected:
            return "option"  # a shell passes it on where a verifier writes `*`
        if name in PYTEST_FILES:
            return "hook" if change.kind != "added" else None
        if change.path.rpartition("/")[2] not in self.rules.expected and self._is_read(change, names):
            return "hook"
        linked = change.type == "symlink" and names[-2:] == [".git", "hooks"]
        return "hook" if linked or is_repository_hook(parents, name) else None

    def _is_read(self, change: Change, names: list[str]) -> bool:
        """Whether another program reads the file by itself; `make` and `rake` prefer other spellings to the usual."""
        if names[-1] in _MAKEFILES and not change.path.endswith(("/Makefile", "/Rakefile")):
            return change.kind == "added" and not any(plain(name) == names[-1] for name in self.rules.expected)
        if names[-2:-1] == [_NODE_PROGRAMS] or (change.type == "symlink" and names[-1] == _NODE_PROGRAMS):
            return names[-1] in self.rules.programs or names[-1] == _NODE_PROGRAMS
        return reads_by_itself(names, link=change.type == "symlink")

    def _of_link(self, change: Change) -> Reason | None:
        """A link survives if it stays in the working folder, or points to something of the environment itself."""
        resolved, rules = resolve(change.path, change.target), self.rules
        if resolved is None or below(resolved, *SCOPE):
            return "link"
        if below(resolved, rules.workdir):
            return None
        if below(resolved, *_LINKS_STAY_IN):
            return "link" if resolved in self.touched and not rules.keep_system else None
        inside = below(change.path, rules.workdir)
        return "link" if inside or below(resolved, "/proc", "/dev", "/sys", "/logs") or resolved == "/" else None


def is_startup(name: str) -> bool:
    """Code that every Python interpreter runs at start."""
    return module_name(name) in _STARTUP_MODULES or name in _STARTUP_MODULES


def is_repository_hook(parents: list[str], name: str) -> bool:
    """A program that git runs on its own, in a repository or in one of its submodules or work trees."""
    if ".git" not in parents or parents[-1] != "hooks" or name.endswith(".sample"):
        return False
    inner = parents[parents.index(".git") + 1 : -1]
    return not inner or (len(inner) > 1 and inner[0] in ("modules", "worktrees") and not {"refs", "logs"} & {*inner})


def module_name(name: str) -> str | None:
    """The name of the module that this file defines, if it is one."""
    found = _MODULE.fullmatch(name)
    return found[1] if found else None


def is_home_setting(name: str) -> bool:
    """Files that shells and tools read from a home folder."""
    return name.startswith(".") or name in _HOME_FILES


def _is_link(change: Change) -> bool:
    """Whether something stands where a folder could be."""
    return change.type != "directory" and change.kind != "deleted"


def _usual_home_of(path: str) -> str:
    return "/root" if below(path, "/root") else "/".join(path.split("/")[:3])


def is_usual_home(folder: str) -> bool:
    return folder == "/root" or (folder.startswith("/home/") and folder.count("/") == 2)


def _starts_home(change: Change, names: list[str], home: str) -> bool:
    rest = "/".join(names[home.count("/") :])
    return of_home_start(rest) or (_is_link(change) and leads_to_home_start(rest))


def _is_home_setting(path: str, home: str) -> bool:
    """Whether `path` is, or is inside, a setting directly in `home`."""
    rest = path[len(home) + 1 :]
    return bool(rest) and (is_home_setting(rest.partition("/")[0]) or bool(_LIBRARY_OF_R.match(rest)))


def _is_above_packages(names: Sequence[str], depth: int) -> bool:
    """Whether packages are below a further folder: gems of a version; and a folder `library` of others than R."""
    if names[depth] == "gems":
        return _VERSION.fullmatch(names[depth + 1]) is not None
    return names[depth] == "library" and names[depth - 1] != "r"


def _folders_above(workdir: str) -> frozenset[str]:
    """The folders that programs pass when they walk up from the working folder, or from the verifier's."""
    parts = workdir.strip("/").split("/")[:-1]
    return frozenset(["/", *("/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1))])


_OF_GO: Final = frozenset({"go", "pkg"})
"""Names without one of which no path has to do with modules of Go."""
_SITES: Final = frozenset({"site-packages", "dist-packages"})
_SITE: Final = re.compile(r"/usr(/local)?/lib(64)?/(python|pypy)[\d.]*/(site|dist)-packages")
"""Where interpreters of a system look, whether the folder exists or not."""
_PACKAGES: Final = _SITES | {"node_modules", "gems", "library", "site-library"}
"""Folders in which each entry is one package of a language."""
_WHOLE: Final = re.compile(
    r"(python|pypy)[23](\.\d+)?t?|go|golang|go-?[\d.]+|rustlib|rubygems|bundler|gconv-modules\.d|(java|jdk|jre)-.*"
)
"""Folders that are one library of a language, or are read as a whole."""
_VERSION: Final = re.compile(r"\d[\d.]*")
_READ_WHOLE: Final = frozenset(
    {("lib", "ext"), ("lib", "endorsed"), ("ant", "lib"), ("gio", "modules"), ("gdb", "auto-load")}
)
_PYTHON_START: Final = frozenset({"pyvenv.cfg", "python._pth", "python3._pth"})


def as_built_places(rules: Rules) -> tuple[str, ...]:
    """Folders in which nothing of the agent survives."""
    own = (*SCOPE[:2], "/run/verifier-ground")
    if rules.keep_system:
        return own
    places = (*SYSTEM, *rules.lookup, *rules.built)
    return (*own, *dict.fromkeys(place for place in places if not below(rules.workdir, place)))


def resolve(path: str, target: str | None) -> str | None:
    """The target of a link by its text; None if unknown, or if it uses `..` after a name.

    After a name that is itself a link, `..` would start from somewhere else, so it is accepted at the beginning only.
    """
    if not target or "\0" in target:
        return None
    names = [name for name in target.split("/") if name not in ("", ".")]
    base = [] if target.startswith("/") else path.split("/")[1:-1]
    while names and names[0] == "..":
        names, base = names[1:], base[:-1]
    return None if ".." in names else "/" + "/".join([*base, *names])
