"""Where the environment's own software is outside the folders of the system, from its variables, links and installs.

`lookup_folders(env)` are folders of programs and libraries, `start_paths(env)` what programs run or read when they
start, `software_places(...)` the parts of software to which those lead. Pure; a path that is or contains the working
folder is never among them, because that is the agent's work.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from benchflow.verifier.surviving.survival import SOFTWARE_PARTS, SYSTEM, below, is_usual_home

_PROGRAMS: Final = (
    "PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "NODE_PATH", "PERL5LIB", "PERLLIB", "GEM_HOME",
    "GEM_PATH", "BUNDLE_PATH", "PYTHONUSERBASE", "R_LIBS", "R_LIBS_SITE", "R_LIBS_USER",
)  # fmt: skip
_MODULES: Final = ("PYTHONPATH", "RUBYLIB", "CLASSPATH")
"""Lists that also name the project itself."""
_STARTS: Final = re.compile(
    r"(BASH_)?ENV|INPUTRC|LD_(PRELOAD|AUDIT)|GCONV_PATH|MAKEFILES"
    r"|PYTHON(?!PATH|HOME|USERBASE)[A-Z]+|COVERAGE_PROCESS_START|PERL5(OPT|DB)|RUBYOPT|NODE_OPTIONS|LUA_INIT[_\d]*"
    r"|(JAVA_TOOL|_JAVA|JDK_JAVA)_OPTIONS|PHPRC|PHP_INI_SCAN_DIR|R_(PROFILE|ENVIRON)(_USER)?|GOENV|GOFLAGS"
    r"|GIT_(CONFIG(_GLOBAL|_SYSTEM)?|EXEC_PATH|TEMPLATE_DIR|SSH|SSH_COMMAND|EXTERNAL_DIFF)"
    r"|(PIP|UV)_CONFIG_FILE|(npm_config|NPM_CONFIG)_(user|global|USER|GLOBAL)(config|CONFIG)|OPENSSL_(CONF|MODULES)"
    r"|WGETRC|HGRCPATH|PSQLRC"
)
"""Variables by which loaders, shells, interpreters and tools are given code and settings. Others name data."""
_NOT_CODE: Final = ("-D", "-I", "-L", "-X")
"""Options of those programs whose paths are folders of modules, or data."""
_SEPARATORS: Final = re.compile(r"[:;,=@]")
_REQUIRED: Final = "-r/"
"""The option by which Ruby and Node load a file, in one word."""
_PROGRAM_FOLDERS: Final = frozenset({"bin", "sbin"})
_LAYOUT: Final = frozenset({"src", "lib", "python"})
"""Names of folders that say nothing about a project."""


def lookup_folders(env: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Where an environment looks up programs and libraries; folders of modules in the working folder are its own."""
    modules = [folder for folder in _folders(env, _MODULES) if not below(folder, workdir)]
    found = [_environment_root(folder) for folder in _folders(env, _PROGRAMS) if not below(workdir, folder)]
    return tuple(dict.fromkeys([*found, *(folder for folder in modules if not below(workdir, folder))]))


def start_paths(env: Mapping[str, str], workdir: str) -> tuple[str, ...]:
    """Files and folders that variables of the environment give to programs for their start."""
    found = [path for name, value in env.items() if _STARTS.fullmatch(name) for path in _paths(value, workdir)]
    return tuple(dict.fromkeys(path for path in found if not below(workdir, path)))


def software_places(
    folders: Iterable[str],
    linked: Iterable[str],
    projects: Iterable[str],
    *,
    workdir: str,
    homes: Sequence[str],
    named: Iterable[str],
    words: frozenset[str],
) -> tuple[str, ...]:
    """What the environment's programs consist of, beside its folders of programs.

    `folders` are those of programs, `linked` what links in folders of the system point to, `projects` the folders that
    Python imports from because they are installed in place. The latter may be what the agent works on, so they do not
    count if the task mentions them by a word; the others only if it names a path that contains them.
    """
    folders, linked = list(folders), list(linked)
    roots = [
        folder.rpartition("/")[0] for folder in [*folders, *map(posixpath.dirname, linked)] if _is_of_programs(folder)
    ]
    suites = [root for root in roots if not _is_home(root, homes)]
    places = [f"{root}/{part}" for root in suites for part in SOFTWARE_PARTS]
    places += [*folders, *linked, *(place for place in projects if not _is_mentioned(place, words))]
    contained = [path for path in named if path.strip("/")]
    return tuple(
        place
        for place in dict.fromkeys(places)
        if not (below(place, *SYSTEM, workdir, *contained) or below(workdir, place) or _is_home(place, homes))
    )


def _folders(env: Mapping[str, str], variables: Sequence[str]) -> list[str]:
    values = [part.rstrip("/*") for name in variables if name in env for part in env[name].split(":")]
    return [value for value in values if value.startswith("/")]


def _environment_root(folder: str) -> str:
    """The whole virtual environment of a `bin` folder: its libraries count with its programs."""
    parent, _, name = folder.rpartition("/")
    is_environment = name == "bin" and parent.rpartition("/")[2] in (".venv", "venv", "env", ".env", "virtualenv")
    return parent if is_environment else folder


def _paths(value: str, workdir: str) -> Iterator[str]:
    """The paths in a value: itself, or parts of its words. One relative to a folder is meant for the working folder."""
    for part in (value, *(part for word in value.split() for part in _parts(word))):
        if part.startswith("/") or ("/" in part and not part.startswith("-")):
            yield "/" + posixpath.normpath(posixpath.join(workdir, part)).lstrip("/")


def _parts(word: str) -> list[str]:
    if word.startswith(_REQUIRED):
        return [word.removeprefix(_REQUIRED[:-1])]
    if word.startswith("-"):
        return [] if word.startswith(_NOT_CODE) else _SEPARATORS.split(word)[1:]
    return [word, *_SEPARATORS.split(word)]


def _is_of_programs(folder: str) -> bool:
    return folder.rpartition("/")[2] in _PROGRAM_FOLDERS and folder.count("/") > 1


def _is_home(root: str, homes: Sequence[str]) -> bool:
    """Whether it is a home, in which software is beside other things, or its `.local`."""
    folder = root.removesuffix("/.local")
    return is_usual_home(folder) or folder in homes


def _is_mentioned(place: str, words: frozenset[str]) -> bool:
    return any(name.casefold() in words for name in place.split("/") if name and name not in _LAYOUT)
