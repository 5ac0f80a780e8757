"""Which changes of an agent survive into verification: `withhold(changes, rules)`, pure.

The verifier sees withheld paths as the environment was built, and everything else as the agent left it. Withheld are,
among others, files that act on programs run beside them: start-up code, test-runner hooks, bytecode, shadowing modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from benchflow.sandbox.protocol import Change

PYTEST_FILES: Final = frozenset({"conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml"})
"""Files that configure pytest as a whole."""

SECTION_FILES: Final = frozenset({"pyproject.toml", "setup.cfg", "tox.ini"})
"""Files of which one section configures pytest."""

_RUNNER_FILES: Final = re.compile(
    r"(jest|vitest|playwright|karma)\.(config|conf)\.[a-z]+|\.mocharc(\.[a-z]+)?|\.rspec|phpunit\.xml(\.dist)?"
    r"|\.coveragerc|\.nycrc(\.json)?|\.jasmine\.json"
)
_STARTUP_MODULES: Final = frozenset({"sitecustomize", "usercustomize"})
_MODULE: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\.pyc?|(\.[A-Za-z0-9_-]+)?\.so)")
_BYTECODE: Final = (".pyc", ".pyo")
_METADATA: Final = (".dist-info", ".egg-info")
_RUNNER_MODULES: Final = frozenset(
    {
        "_pytest", "attr", "attrs", "colorama", "coverage", "exceptiongroup", "hypothesis", "importlib_metadata",
        "iniconfig", "nose", "numpy", "packaging", "pandas", "pip", "pkg_resources", "pluggy", "py", "pygments",
        "pytest", "requests", "rewardkit", "setuptools", "six", "tomli", "typing_extensions", "xdist", "yaml", "zipp",
    }
)  # fmt: skip
_ORDINARY: Final = frozenset({"test", "this", "antigravity", "turtledemo", "idlelib", "lib2to3"})
"""Modules of the standard library whose names people use for their own files and that nothing else imports."""
_SHADOWED: Final = (sys.stdlib_module_names | _RUNNER_MODULES) - _ORDINARY
_HOME_FILES: Final = frozenset({"bin"})


def is_startup(name: str) -> bool:
    """Code that every Python interpreter runs at start."""
    return name.endswith(".pth") or module_name(name) in _STARTUP_MODULES or name in _STARTUP_MODULES


def is_program(name: str) -> bool:
    """Code that makes a folder executable, so that running a script of the folder's name runs it."""
    return module_name(name) == "__main__"


def is_bytecode(name: str) -> bool:
    return name == "__pycache__" or name.endswith(_BYTECODE)


def is_runner_hook(parents: list[str], name: str) -> bool:
    """Configuration and code that a test runner loads from its working folder."""
    if name in PYTEST_FILES or _RUNNER_FILES.fullmatch(name):
        return True
    if name in ("config", "config.toml"):
        return parents[-1:] == [".cargo"]
    return name == "entry_points.txt" and bool(parents) and parents[-1].endswith(_METADATA)


def is_repository_hook(parents: list[str], name: str) -> bool:
    """A program that git runs on its own."""
    return parents[-2:] == [".git", "hooks"] and not name.endswith(".sample")


def module_name(name: str) -> str | None:
    """The name of the module that this file defines, if it is one."""
    found = _MODULE.fullmatch(name)
    return found[1] if found else None


def shadows(module: str | None) -> bool:
    """Whether a module of this name shadows one that verifiers import."""
    return module in _SHADOWED


def is_home_setting(name: str) -> bool:
    """Files that shells and tools read from a home folder."""
    return name.startswith(".") or name in _HOME_FILES


Reason = Literal["scope", "system", "path", "home", "startup", "hook", "bytecode", "shadow", "link", "special"]

REASONS: Final[dict[Reason, str]] = {
    "scope": "belongs to the verifier",
    "system": "is part of the system",
    "path": "is in a folder where programs or libraries are looked up",
    "home": "is a setting that shells and tools read",
    "startup": "is code that interpreters run when they start",
    "hook": "controls a test runner or a repository",
    "bytecode": "is bytecode",
    "shadow": "shadows a module that verifiers import",
    "link": "is a link to a place outside the working folder",
    "special": "is neither a file, a folder nor a link",
}

SCOPE: Final = ("/verifier", "/tests", "/logs/verifier", "/run/verifier-ground", "/oracle", "/solution")
"""Paths that belong to verification and proof; an agent can never put anything there."""

SYSTEM: Final = (
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/root", "/run", "/sbin",
    "/sys", "/usr", "/var/cache", "/var/lib", "/var/spool",
)  # fmt: skip
"""Folders of the system, unless the agent's working folder is there."""
_PUBLIC: Final = ("/", "/tmp", "/var/tmp")  # noqa: S108 - places inside a sandbox
_NODE_MODULES: Final = "/node_modules"
"""Where Node looks up modules for any script."""
_LINKS_STAY_IN: Final = ("/bin", "/etc", "/lib", "/lib64", "/opt", "/sbin", "/usr")


@dataclass(frozen=True, slots=True)
class Rules:
    """What a package allows the changes of its agent to do."""

    workdir: str
    lookup: tuple[str, ...] = ()
    """Folders where the environment looks up programs and libraries."""
    built: tuple[str, ...] = ()
    """Folders of tools that the environment built, wherever they are."""
    modules: tuple[str, ...] = ()
    """Folders on the module path that are in the working folder."""
    keep_system: bool = False
    keep_hooks: bool = False
    expected: frozenset[str] = frozenset()
    """File names that the task itself mentions."""
    mounted: tuple[str, ...] = ()
    """Mount points, which appear as changes but are not."""


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
    touched = frozenset(change.path for change in ordered)
    found: list[Withheld] = []
    for change in ordered:
        if (found and below(change.path, found[-1].path)) or _leads_to_mount(change, rules):
            continue
        reason = _reason(change, rules, touched)
        if reason is not None:
            found.append(Withheld(change.path, change.kind, reason))
    return found


def _leads_to_mount(change: Change, rules: Rules) -> bool:
    return change.type != "symlink" and any(below(place, change.path) for place in rules.mounted)


def below(path: str, *folders: str) -> bool:
    """Whether `path` is one of the folders or is inside one."""
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _reason(change: Change, rules: Rules, touched: frozenset[str]) -> Reason | None:
    path = change.path
    if below(path, *SCOPE):
        return "scope"
    if change.type != "directory" and any(place.startswith(path + "/") for place in (*SCOPE, rules.workdir + "/")):
        return "scope"  # a link or file on the path to such a place
    if change.type == "special":
        return "special"
    inside = below(path, rules.workdir)
    reason = None
    if not rules.keep_system:
        reason = _lookup_reason(change, rules, inside=inside)
    if reason is None and (inside or not _is_system(path)):
        reason = _acting_reason(path, rules)
    if reason is None and change.type == "symlink" and change.kind != "deleted":
        reason = _link_reason(change, rules, touched, inside=inside)
    return reason


def _lookup_reason(change: Change, rules: Rules, *, inside: bool) -> Reason | None:
    """System state: where the system, its interpreters and their settings live."""
    path = change.path
    programs = (*rules.lookup, *rules.built, _NODE_MODULES)
    if below(path, *programs):
        return "path"
    if (change.type != "directory" or change.kind == "deleted") and any(below(place, path) for place in programs):
        return "path"  # a parent of such a place was removed or redirected
    if inside:
        return "home" if _is_home_setting(path, rules.workdir) else None
    if _is_system(path):
        return None if rules.workdir.startswith(path + "/") else "system"
    return "home" if _is_home_setting(path, "/".join(path.split("/")[:3])) else None


def _is_system(path: str) -> bool:
    return below(path, *SYSTEM)


def _is_home(folder: str) -> bool:
    return folder == "/root" or (folder.startswith("/home/") and folder.count("/") == 2)


def _is_home_setting(path: str, home: str) -> bool:
    """Whether `path` is, or is inside, a setting directly in `home`; without a home there are none."""
    return _is_home(home) and path != home and is_home_setting(path[len(home) + 1 :].partition("/")[0])


def _acting_reason(path: str, rules: Rules) -> Reason | None:
    *parents, name = path.split("/")[1:]
    folder = "/" + "/".join(parents)
    if is_startup(name):
        return "startup"
    if is_bytecode(name):
        return "bytecode"
    if is_program(name) and not below(path, rules.workdir) and name not in rules.expected:
        return "startup"
    if rules.keep_hooks:
        return None
    if is_runner_hook(parents, name) and (name in PYTEST_FILES or name not in rules.expected):
        return "hook"
    if is_repository_hook(parents, name) or (folder == "/" and name in SECTION_FILES):
        return "hook"
    return "shadow" if _shadows(folder, name, rules) else None


def _shadows(folder: str, name: str, rules: Rules) -> bool:
    """Whether a file is a module that shadows another; a folder is one through its `__init__`."""
    module = module_name(name)
    if module == "__init__":
        folder, _, module = folder.rpartition("/")
    importable = (folder or "/") in (rules.workdir, *rules.modules, *_PUBLIC) or _is_home(folder)
    return importable and shadows(module) and f"{module}.py" not in rules.expected


def _link_reason(change: Change, rules: Rules, touched: frozenset[str], *, inside: bool) -> Reason | None:
    """A link survives if it stays in the working folder, or points to something of the environment itself."""
    resolved = resolve(change.path, change.target)
    if resolved is None or below(resolved, *SCOPE):
        return "link"
    if below(resolved, rules.workdir):
        return None
    if below(resolved, *_LINKS_STAY_IN):
        return "link" if resolved in touched and not rules.keep_system else None
    return "link" if inside or below(resolved, "/proc", "/dev", "/sys", "/logs") or resolved == "/" else None


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


def lookup_folders(env: dict[str, str], workdir: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where an environment looks up programs and libraries, and which folders of modules are in the working folder."""
    programs = _folders(env, ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "NODE_PATH", "PERL5LIB"))
    modules = _folders(env, ("PYTHONPATH",))
    outside = [folder for folder in modules if not below(folder, workdir)]
    found = [_environment_root(folder) for folder in programs if not below(workdir, folder)]
    inside = [folder for folder in modules if below(folder, workdir)]
    return tuple(dict.fromkeys([*found, *outside])), tuple(dict.fromkeys(inside))


def _folders(env: dict[str, str], variables: Sequence[str]) -> list[str]:
    values = [part.rstrip("/") for name in variables if name in env for part in env[name].split(":")]
    return [value for value in values if value.startswith("/")]


def _environment_root(folder: str) -> str:
    """The whole virtual environment of a `bin` folder: its libraries count with its programs."""
    parent, _, name = folder.rpartition("/")
    is_environment = name == "bin" and parent.rpartition("/")[2] in (".venv", "venv", "env", ".env", "virtualenv")
    return parent if is_environment else folder
