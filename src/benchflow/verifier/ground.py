"""The ground folder of a verifier's box: from it interpreters and tools know what is as built.

/run/verifier-ground/changes    what survived of the agent's changes: records that end with NUL, a word and a path
                     sources    files of Python that the agent added or changed, and that survived: a size and a path
                     pristine/  settings that the agent changed, as the environment was built
                     settings   digests of the settings that the environment was built with
                     python/    the interpreter hook, started from the standard libraries of the environment
                     node/      the same for Node, started by what stands in the place of each `node` as built
                     ruby/      the same for Ruby, also started by RubyGems
                     perl/      the same for Perl
                     make/      targets that no file of the agent stands for
                     uv/        a project for uv, where the agent's would be found

The words: `place`, where nothing is the agent's; `added`, the outermost path that the agent added; `changed`, a path as
built that it changed; `setting`, a file that configures a program of Python; `modules`, a
folder of packages of Node; `kept`, the package opted out.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchflow.errors import SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import Change, Sandbox
from benchflow.verifier.lookups import MAKE_HOOK, NODE_HOOK, PERL_HOOK, RUBY_HOOK, node_option
from benchflow.verifier.scope import GROUND
from benchflow.verifier.surviving.makefiles import phony
from benchflow.verifier.surviving.survival import SETTINGS, Rules, as_built_places, below, leads_to_mount

_HOOK: Final = Path(__file__).parent / "kit" / "ground"
_START: Final = "start.py"
_START_PLACE: Final = "encodings/aliases/__init__.py"
"""Stands before `encodings/aliases.py`, which every interpreter imports before it looks at its options, variables, site
folders and virtual environment: no way to start Python goes around it, and nothing that was built is changed."""
_UV_PROJECT: Final = b'[project]\nname = "verifier"\nversion = "0"\n'
START_OF_GEMS: Final = "rubygems/defaults/ruby.rb"
"""A file that RubyGems loads at its start, and that it comes without."""
_NODE_FRONT: Final = """\
#!/bin/sh
case " $NODE_OPTIONS " in
  *" {option} "*) ;;
  *) NODE_OPTIONS="{option} $NODE_OPTIONS"; export NODE_OPTIONS;;
esac
exec {kept} "$@"
"""
"""Stands in the place of Node, which starts a hook only by an option: a verifier may set or clear the variable, and
`env -i`, `su` and `sudo` do. Node itself keeps its folder, from where it finds its libraries."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a box has to know of the agent's changes."""

    changes: bytes = field(repr=False)
    stdlibs: tuple[str, ...] = ()
    """The standard libraries of the environment's Python interpreters."""
    gems: tuple[str, ...] = ()
    """Folders with RubyGems of the environment."""
    nodes: tuple[str, ...] = ()
    """The programs of Node that the environment was built with."""
    settings: frozenset[str] = frozenset()
    """Digests of settings of the environment as built."""
    pristine: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    """Settings that the agent changed, as built, by path."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What turns off look-ups that the agent's files would answer."""
    misleads_node: bool = False
    """Whether a `package.json` of the agent would break `--require`."""
    node_hook: str = field(default_factory=lambda: f"verifier-ground-{secrets.token_hex(8)}")
    """The name by which Node requires its hook, from `/node_modules`. A `package.json` in the current folder can stand
    for every path, and for a name that its author knows: this one is made for one box."""
    phony: frozenset[str] = frozenset()
    """Targets of makefiles that a file of the agent would stand for."""
    sources: bytes = field(default=b"", repr=False)
    """The files of Python that the agent added or changed."""

    @property
    def files(self) -> Mapping[str, bytes]:
        """The files that are the same for all boxes of an environment, by path."""
        return common_files(self.stdlibs, self.gems, self.settings)

    async def lay(self, sandbox: Sandbox, *, whole: bool) -> tuple[str, ...]:
        """Put everything in place, owned by root; `whole` includes the common files. Gives what has no front.

        A backend that only shows the machine's programs cannot replace them: then the variable alone gives the hook.
        """
        files = dict(self.files) if whole else {}
        files |= {f"{GROUND}/pristine{path}": data for path, data in self.pristine.items()}
        if self.phony:
            files[MAKE_HOOK] = phony(self.phony)
        files[f"/node_modules/{self.node_hook}.js"] = f'require("{NODE_HOOK}");\n'.encode()
        files[f"{GROUND}/sources"] = self.sources
        files[f"{GROUND}/changes"] = self.changes
        await sandbox.write_files(files)
        option = node_option(self.node_hook, misled=self.misleads_node)
        without: list[str] = []
        for place in self.nodes:
            folder, _, name = place.rpartition("/")
            kept = f"{folder}/.{self.node_hook}-{name}"
            try:
                await sandbox.stand_in(place, _NODE_FRONT.format(option=option, kept=kept).encode(), kept)
            except SandboxFailure as error:
                if error.code != "stand-in-failed":
                    raise
                without.append(place)
        return tuple(without)


@functools.lru_cache(maxsize=32)
def common_files(stdlibs: Sequence[str], gems: Sequence[str], settings: frozenset[str]) -> Mapping[str, bytes]:
    """The files of the ground folder that are the same for all boxes of an environment, by path."""
    hook = {f"{GROUND}/python/{file.name}": file.read_bytes() for file in sorted(_HOOK.glob("*.py"))}
    start = hook.pop(f"{GROUND}/python/{_START}")
    hook[NODE_HOOK] = (_HOOK / "node_lookups.cjs").read_bytes()
    hook[f"{GROUND}/node/imports.mjs"] = (_HOOK / "node_imports.mjs").read_bytes()
    hook[f"{GROUND}/settings"] = "\n".join(sorted(settings)).encode()
    hook[RUBY_HOOK] = (_HOOK / "ruby_lookups.rb").read_bytes()
    hook[PERL_HOOK] = (_HOOK / "perl_lookups.pl").read_bytes()
    starts = {f"{stdlib}/{_START_PLACE}": start for stdlib in stdlibs}
    starts |= {f"{folder}/{START_OF_GEMS}": f'require "{RUBY_HOOK}"\n'.encode() for folder in gems}
    return {**hook, **starts, f"{GROUND}/uv/pyproject.toml": _UV_PROJECT}


def describe(changes: Iterable[Change], withheld: PathSet, rules: Rules) -> bytes:
    """The records of what survived."""
    if rules.keep_hooks:
        return b"kept \0"
    places = (f"place {place}" for place in as_built_places(rules))
    own = [change for change in changes if not leads_to_mount(change, rules) and not below(change.path, *rules.mounted)]
    records = [*places, *_records(own, withheld)]
    return b"".join(record.encode("utf-8", "surrogateescape") + b"\0" for record in records)


def _records(changes: Iterable[Change], withheld: PathSet) -> Iterator[str]:
    added, modules = PathSet(), PathSet()
    for change in sorted(changes, key=lambda change: change.path):
        if change.kind == "deleted" or withheld.covers(change.path):
            continue
        if change.type != "directory" and _is_setting(change.path):
            yield f"setting {change.path}"
        if change.path.endswith("/node_modules") and not modules.covers(change.path):
            modules.add(change.path)
            yield f"modules {change.path}"
        if change.kind == "added" or change.type == "symlink":
            if not added.covers(change.path):
                added.add(change.path)
                yield f"added {change.path}"
        elif change.type != "directory":
            yield f"changed {change.path}"


def sources_of(changes: Iterable[Change], withheld: PathSet) -> bytes:
    """The records of the files of Python that the agent added or changed and that survived, without installed ones.

    A link has the size -1.
    """
    return b"".join(
        f"{-1 if change.type == 'symlink' else change.size} {change.path}".encode("utf-8", "surrogateescape") + b"\0"
        for change in changes
        if change.path.endswith(".py")
        and change.type in ("file", "symlink")
        and change.kind != "deleted"
        and "-packages/" not in change.path
        and not withheld.covers(change.path)
    )


def _is_setting(path: str) -> bool:
    """Whether a copy of this file would act too: settings, and what makes the folder of a test a package."""
    name = path.rpartition("/")[2]
    return name in SETTINGS or (name == "__init__.py" and "-packages/" not in path)


_UV_FILES: Final = frozenset({".python-version", ".python-versions", ".venv", "pyproject.toml", "uv.lock", "uv.toml"})
"""What uv looks for in the current folder and above it."""
_UV_PROJECTS: Final = frozenset({"pyproject.toml", "uv.lock"})
"""With one of these the agent has a project there, and `uv init` has nothing to create."""
_UV_INIT: Final = re.compile(rb"^[^#\n]*\buv\b[^#\n;&|]*\sinit\b", re.MULTILINE)
_LARGEST_SCRIPT: Final = 1 << 20
NO_UV_SETTINGS: Final = {"UV_NO_CONFIG": "1"}
"""With it uv takes no settings and no version of Python from files, wherever it is started."""


@functools.lru_cache(maxsize=128)
def configures_uv(folders: Sequence[Path]) -> bool:
    """Whether a verifier has settings for uv among its files. A `pyproject.toml` without its name has none."""
    names = _UV_FILES - {".venv", "uv.lock"}
    found = (Path(place, name) for folder in folders for place, _, files in os.walk(folder) for name in files)
    return any(file.name in names and (file.name != "pyproject.toml" or b"uv" in file.read_bytes()) for file in found)


@functools.lru_cache(maxsize=128)
def creates_uv_project(folders: Sequence[Path]) -> bool:
    """Whether a file of a verifier runs `uv init`."""
    files = (Path(place, name) for folder in folders for place, _, names in os.walk(folder) for name in names)
    scripts = (file for file in files if file.is_file() and file.stat().st_size <= _LARGEST_SCRIPT)
    return any(_UV_INIT.search(file.read_bytes()) for file in scripts)


def environments_of_uv(changes: Sequence[Change], withheld: PathSet, workdir: str) -> list[Change]:
    """Virtual environments of the agent's that uv would run, and use, where a verifier creates a project.

    None if the agent has a project there: then `uv init` creates nothing.
    """
    own = _left_for_uv(changes, withheld, workdir)
    if not _UV_PROJECTS.isdisjoint(_name(change.path) for change in own):
        return []
    return [change for change in own if _name(change.path) == ".venv"]


def uv_variables(
    changes: Sequence[Change], withheld: PathSet, workdir: str, *, project: bool, creates: bool = False
) -> dict[str, str]:
    """How uv leaves alone what the agent added to the working folder and above it; empty if uv looks for none of that.

    A `project` that was built there stays uv's, with a virtual environment of its own instead of the agent's. Without
    one uv has a project in the ground folder, so that `uv add` and `uv run` work as in the folder as built. `uv init`
    refuses to run with it, so a verifier that `creates` a project has none, unless one of the agent's would be found.
    """
    own = {_name(change.path) for change in _left_for_uv(changes, withheld, workdir)}
    if not own:
        return {}
    variables = dict(NO_UV_SETTINGS)
    if project:
        variables |= {"UV_PROJECT_ENVIRONMENT": f"{GROUND}/uv/.venv"} if ".venv" in own else {}
    elif not creates or not own.isdisjoint({*_UV_PROJECTS, ".venv"}):
        variables["UV_PROJECT"] = f"{GROUND}/uv"
    return variables


def _left_for_uv(changes: Sequence[Change], withheld: PathSet, workdir: str) -> list[Change]:
    return [
        change
        for change in changes
        if change.kind == "added"
        and _name(change.path) in _UV_FILES
        and below(workdir, _parent(change.path))
        and not withheld.covers(change.path)
    ]


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def _is_node_package(path: str) -> bool:
    return path.endswith("/package.json") and "/node_modules/" not in path


def changed_settings(changes: Iterable[Change], withheld: PathSet) -> list[str]:
    """The settings of programs that the environment was built with and the agent changed."""
    return [
        change.path
        for change in changes
        if change.kind == "changed"
        and change.type == "file"
        and (change.path.rpartition("/")[2] in SETTINGS or _is_node_package(change.path))
        and not withheld.covers(change.path)
    ]
