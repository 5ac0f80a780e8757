"""Verification on a copy of the agent's files in which all that could act on the verifier is as built.

`fork_for_verification` makes the copy and says what it does not take over; `as_built` is what an image was built with.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.inside.accounts import UnknownUser, find_account
from benchflow.sandbox.machine_settings.allowance import phase_settings
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Limits, NetworkPolicy, Sandbox
from benchflow.sandbox.task_policy import asset_mounts, network_policy
from benchflow.verifier.ground import (
    NO_UV_SETTINGS,
    START_OF_GEMS,
    Ground,
    changed_settings,
    configures_uv,
    creates_uv_project,
    describe,
    environments_of_uv,
    sources_of,
    uv_variables,
)
from benchflow.verifier.scope import LOGS, TESTS, VERIFIER, Scope, paths_of, words_of
from benchflow.verifier.surviving import makefiles, node_packages, own_account, repositories
from benchflow.verifier.surviving.missed_lookups import MissedPaths, may_be_looked_for
from benchflow.verifier.surviving.start_files import NAME_SERVICES
from benchflow.verifier.surviving.survival import (
    SCOPE,
    SETTINGS,
    SYSTEM,
    Rules,
    Withheld,
    below,
    lookup_folders,
    withhold,
)

if TYPE_CHECKING:
    from benchflow.verifier.surviving.libraries import Candidate

CLOSED: Final = (*SCOPE, *NAME_SERVICES, "/dev", "\0/")
"""Where no socket of a service is forwarded. Abstract names with a path are those of services of a system."""
_LARGEST_SETTING: Final = 64 << 20
_FROZEN: Final = 11
"""The first Python 3 whose `codecs` no file can replace."""
_PROMPT: Final = "/instruction.md"
"""Put there for the agent when a step begins."""


async def survival_rules(environment: Environment, sandbox: Sandbox, scope: Scope) -> Rules:
    """What may survive of the agent's changes in this sandbox of the environment."""
    spec = sandbox.spec
    env = {**(spec.image.env if spec.image is not None else {}), **spec.env}
    built = await as_built(environment)
    everything = scope.isolation.rung == "open"
    return Rules(
        workdir=spec.workdir,
        scope=tuple(place for place in SCOPE if place in scope.places or place not in (VERIFIER, TESTS)),
        lookup=lookup_folders(env, spec.workdir),
        built=built.tools,
        programs=built.programs,
        keep_system=scope.isolation.keeps_system and not everything and not scope.system_as_built,
        keep_hooks=everything or not scope.config.hardening.cleanup_conftests,
        keep_all=everything,
        expected=words_of(scope.prompt),
        named=paths_of(scope.prompt) | {_PROMPT, *(artifact.source for artifact in scope.artifacts)},
        mounted=tuple(mount.target for mount in spec.mounts),
        home=home_as_built(built, env, scope.user),
        early=early_modules(built.stdlibs),
        missed=scope.missed or MissedPaths(),
    )


def early_modules(stdlibs: Iterable[str]) -> frozenset[str]:
    """The modules that interpreters import before `encodings.aliases`; from Python 3.11 on one of them is frozen."""
    versions = (re.search(r"3\.(\d+)", place.rpartition("/")[2]) for place in stdlibs)
    frozen = all(version is not None and int(version[1]) >= _FROZEN for version in versions)
    return frozenset({"encodings"} if frozen else {"encodings", "codecs"})


def home_as_built(built: AsBuilt, env: Mapping[str, str], user: str) -> str | None:
    """The home of a user, whatever the agent made of the accounts; None if the environment has no such user."""
    if "HOME" in env:
        return env["HOME"].rstrip("/") or "/"
    try:
        return find_account(user, built.accounts, "").home.rstrip("/") or "/"
    except UnknownUser:
        return None


@dataclass(slots=True)
class Survivors:
    """Chooses and records what a fork does not take over. `without_links` are folders that must have no links."""

    rules: Rules
    without_links: tuple[str, ...] = ()
    withheld: list[Withheld] = field(default_factory=list)
    changes: bytes = b""
    """What survived, as the ground folder describes it."""
    sources: bytes = b""
    """The files of Python among it."""
    settings: list[str] = field(default_factory=list)
    """Settings that survived changed."""
    variables: dict[str, str] = field(default_factory=dict)
    repositories: list[Change] = field(default_factory=list)
    """Files that may be the settings of a repository."""
    elsewhere: list[str] = field(default_factory=list)
    """What leads git to a repository in another place."""
    node_packages: list[str] = field(default_factory=list)
    """Files that Node may read before it loads its hook."""
    misleads_node: bool = False
    """Whether one of them would redirect or break that."""
    libraries: list[Candidate] = field(default_factory=list)
    """Libraries that may stand before the environment's."""
    added: PathSet = field(default_factory=PathSet)
    project: bool = False
    """Whether the working folder was built with a `pyproject.toml`."""
    configures_uv: bool = False
    """Whether the environment or the verifier has settings for uv."""
    creates_project: bool = False
    """Whether the verifier runs `uv init`."""
    actions: frozenset[str] = frozenset()
    """Targets of makefiles of the verifier and of the environment that are not files."""
    phony: frozenset[str] = frozenset()
    """Those that a file of the agent would stand for."""
    made: re.Pattern[str] | None = None
    """Targets that are files and that makefiles of the verifier make."""
    future: list[str] = field(default_factory=list)
    """Files whose times may lie in the future."""
    accounts: bool = False
    """Whether the agent changed accounts, and that is kept."""
    reachable: bool = False
    """Whether programs may look for something that is kept."""

    def choose(self, changes: Sequence[Change]) -> list[str]:
        self.withheld = withhold(changes, self.rules)
        known, folders = PathSet(item.path for item in self.withheld), PathSet(self.without_links)
        self.withheld += [
            Withheld(change.path, change.kind, "link")
            for change in changes
            if change.type == "symlink" and folders.covers(change.path) and not known.covers(change.path)
        ]
        if not self.rules.keep_hooks:
            stand = makefiles.stand_for(changes, self.made, self.rules.expected)
            self.withheld += [Withheld(item.path, item.kind, "target") for item in stand if not known.covers(item.path)]
            if self.creates_project and not self.project and ".venv" not in self.rules.expected:
                remade = environments_of_uv(changes, PathSet(item.path for item in self.withheld), self.rules.workdir)
                self.withheld += [Withheld(item.path, item.kind, "target") for item in remade]
        gone = [item.path for item in self.withheld]
        self.withheld = [item for item in self.withheld if not _was_placed(item, changes)]
        left = PathSet(gone)
        self.changes = describe(changes, left, self.rules)
        self.sources = sources_of(changes, left)
        if not self.rules.keep_hooks:
            self.settings = changed_settings(changes, left)
            names = {change.path.rpartition("/")[2].casefold() for change in changes}
            if not repositories.SETTINGS.isdisjoint(names):
                self.repositories = repositories.candidates(changes, left)
            if not repositories.POINTERS.isdisjoint(names):
                self.elsewhere = repositories.elsewhere(changes, left)
            if node_packages.NAME in names:
                self.node_packages = node_packages.candidates(changes, left)
            self.future = makefiles.of_the_future(changes, left, time.time())
            self.variables = uv_variables(
                changes, left, self.rules.workdir, project=self.project, creates=self.creates_project
            )
            if not self.configures_uv:  # then none that an archive brings counts either
                self.variables |= NO_UV_SETTINGS
            own = (change.path.rpartition("/")[2] for change in changes if change.kind == "added")
            self.phony = self.actions.intersection(own)
        if self.rules.keep_system or self.elsewhere:
            self.added = PathSet(change.path for change in changes if change.kind == "added")
        if self.rules.keep_system:
            from benchflow.verifier.surviving import libraries

            self.libraries = libraries.candidates(changes, left)
            kept = [change for change in changes if not left.covers(change.path)]
            self.accounts = own_account.are_changed(kept)
            self.reachable = any(may_be_looked_for(change, self.rules.workdir) for change in kept)
            self.variables |= {"HOME": self.rules.home} if self.rules.home is not None else {}
        return gone


def _was_placed(item: Withheld, changes: Sequence[Change]) -> bool:
    """Whether it is the empty folder for rewards that every agent finds: no change of the agent's."""
    return item.path == LOGS and not any(change.path.startswith(f"{LOGS}/") for change in changes)


async def fork_for_verification(
    environment: Environment,
    sandbox: Sandbox,
    scope: Scope,
    without_links: tuple[str, ...] = (),
    *,
    machine: Mapping[str, str],
    tree: Path | None = None,
    beside: bool = False,
) -> tuple[Sandbox, Survivors]:
    """A started copy of the agent's sandbox with what may survive, with the verifier's mounts and network.

    A `tree` that the sandbox `lays` is in it from the start.
    It runs `beside` what keeps running and can use it; otherwise services of a composition are copied.
    """
    rules = await survival_rules(environment, sandbox, scope)
    built = await as_built(environment)
    targets = built.actions | makefiles.actions_of(scope.folders)
    made = makefiles.made_by(scope.folders)
    configures = built.configures_uv or configures_uv(scope.folders)
    creates = creates_uv_project(scope.folders)
    survivors = Survivors(
        rules,
        without_links,
        project=built.project,
        configures_uv=configures,
        creates_project=creates,
        actions=targets,
        made=made,
    )
    mounts = [mount for mount in asset_mounts(scope.view, "verifier") if mount not in sandbox.spec.mounts]
    network = scope.network(network_policy(scope.view, "verifier"))
    there = {mount.target for mount in sandbox.spec.mounts}
    given = phase_settings("verify", network.mode, machine).mounts
    mounts += [mount for mount in given if mount.target not in there]
    options: Any = {"mounts": mounts, "network": network, "revert": survivors.choose}
    options |= {"tree": tree} if tree is not None else {}
    forked = await (sandbox.fork_beside(**options, closed=CLOSED) if beside else sandbox.fork(**options))
    try:
        if survivors.repositories or survivors.libraries or survivors.elsewhere:
            await _settle(environment, forked, survivors)
        if survivors.accounts and await own_account.settle(forked, built.accounts, scope.user):
            survivors.withheld.append(Withheld(own_account.ACCOUNTS, "changed", "startup"))
        if survivors.future:
            await makefiles.make_present(forked, survivors.future)
        if survivors.node_packages:
            survivors.misleads_node = await node_packages.mislead(forked, survivors.node_packages)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await forked.stop()
        raise
    return forked, survivors


async def _settle(environment: Environment, forked: Sandbox, survivors: Survivors) -> None:
    """Restore what can be judged in the copy only."""
    async with AsyncExitStack() as stack:

        async def pristine() -> Sandbox:
            spec = replace(environment.preparation.spec, composition=None)
            return await stack.enter_async_context(environment.backend.create(spec))

        kinds = {change.path: change.kind for change in survivors.repositories}
        changed = await repositories.settle(forked, survivors.repositories, survivors.rules.workdir, pristine)
        survivors.withheld += [Withheld(path, kinds[path], "hook") for path in changed]
    hooks = await repositories.settle_hooks(forked, survivors.elsewhere, survivors.added)
    survivors.withheld += [Withheld(path, "added", "hook") for path in hooks]
    if not survivors.libraries:
        return
    from benchflow.verifier.surviving import libraries

    removed = await libraries.settle(forked, survivors.libraries, survivors.added)
    survivors.withheld += [Withheld(path, "added", "path") for path in removed]


async def ground_of(environment: Environment, survivors: Survivors) -> Ground:
    """What the ground folder of a box with these survivors holds."""
    built = await as_built(environment)
    pristine = await _read_as_built(environment, survivors.settings) if survivors.settings else {}
    return Ground(
        survivors.changes,
        built.stdlibs,
        built.gems,
        built.nodes,
        built.settings,
        pristine,
        survivors.variables,
        survivors.misleads_node,
        phony=survivors.phony,
        sources=survivors.sources,
    )


async def _read_as_built(environment: Environment, paths: Iterable[str]) -> dict[str, bytes]:
    """Files as the environment was built; what is not a plain file there is left out."""
    pristine = environment.backend.create(replace(environment.preparation.spec, composition=None))
    found: dict[str, bytes] = {}
    async with pristine:
        for path in paths:
            try:
                found[path] = await pristine.read_file(path, max_bytes=_LARGEST_SETTING)
            except SandboxFailure as error:
                if error.code not in OF_THE_FILE:
                    raise
    return found


_TIMEOUT_SEC: Final = 300.0
_WALK: Final = r"""
node() {
  [ -x "$1" ] && [ -f "$1" ] && printf 'node %s\0' "$(readlink -f "$1")"
}
stdlib() {
  [ -f "$1/encodings/aliases.py" ] || return 0
  place=$(cd -P "$1/encodings" && pwd -P)
  case $place in */encodings) place=${place%/encodings};; *) place=$(cd -P "$1" && pwd -P);; esac
  printf 'stdlib %s\0' "$place"
}
setting() {
  case $SETTINGS in *":${1##*/}:"*) [ ! -s "$1" ] || printf '%s\0' "$1" >&3;; esac
}
look() {
  [ -d "$1" ] || { setting "$1"; return 0; }
  found=
  node "$1/bin/node"
  case $1 in */node_modules) found=yes;; esac
  [ -d "$1/conda-meta" ] && found=yes
  [ -e "$1/bin/python3" ] && found=yes
  if [ -f "$1/pyvenv.cfg" ]; then
    found=yes
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "home = "*)
        home=${line#home = }
        printf '%s\0' "$home"
        for place in "${home%/bin}"/lib*/py*3*; do stdlib "$place"; done;;
      esac
    done <"$1/pyvenv.cfg"
  fi
  if [ "$found" ]; then
    printf '%s\0' "$1"
    for place in "$1"/lib*/py*3*; do stdlib "$place"; done
    case $WORKDIR/ in "$1"/*) ;; *) return 0;; esac
  fi
  [ -L "$1" ] || walk "$1"
}
walk() {
  for entry in "$1"/* "$1"/.[!.]*; do
    case $SKIPPED in *":$entry:"*) ;; *) look "$entry";; esac
  done
}
mkdir -p /tmp
list=/tmp/settings.$$
exec 3>"$list"
walk ""
look "$WORKDIR"
xargs -0 sha256sum <"$list" 2>/dev/null | while read -r digest name; do printf 'setting %s\0' "${digest#\\}"; done
[ ! -e "$WORKDIR/pyproject.toml" ] || printf 'project\0'
uv() {
  for file in "$1/uv.toml" "$1/.python-version" "$1/.python-versions"; do
    [ ! -e "$file" ] || printf 'uv\0'
  done
  if [ -e "$1/pyproject.toml" ]; then
    grep -q uv "$1/pyproject.toml" && lacks=0 || lacks=$?
    [ "$lacks" -eq 1 ] || printf 'uv\0'
  fi
}
uv "$WORKDIR"
uv /etc/uv
for folder in /root /home/*; do uv "$folder/.config/uv"; done
find "$WORKDIR" -maxdepth 4 -type f -size -512 \( -iname '*makefile*' -o -name '*.mk' \) \
  -exec printf 'makefile ' \; -exec cat {} \; -exec printf '\0' \; 2>/dev/null | head -c 4000000
for folder in $GEMS; do
  [ -f "$folder/rubygems.rb" ] && [ ! -e "$folder/$START_OF_GEMS" ] && printf 'gems %s\0' "$folder"
done
printf 'accounts %s\0' "$(cat /etc/passwd 2>/dev/null)"
IFS=:
set -f
for pattern in $STDLIBS; do
  set +f
  for place in $pattern; do stdlib "$place"; done
done
set +f
for pattern in $NODES; do
  for place in $pattern; do node "$place"; done
done
for folder in $PATH; do node "$folder/node"; node "$folder/nodejs"; done
for folder in $FOLDERS:$PATH; do
  for file in $folder/*; do printf 'file %s\0' "${file##*/}"; done
done
"""
"""Prints roots of tools and the home of virtual environments (a link to such a root is one too), standard libraries of
Python, digests of settings, and the names of programs and shared libraries."""

_STDLIBS: Final = ("/usr/lib*/py*3*", "/usr/local/lib*/py*3*", "/opt/*/lib*/py*3*", "/opt/*/*/lib*/py*3*")
"""Where interpreters of a system have their standard libraries."""
_NODES: Final = (
    "/opt/*/bin/node",
    "/opt/*/*/bin/node",
    "/usr/local/*/bin/node",
    "/usr/local/*/versions/node/*/bin/node",
)
"""Where Node is installed, beside the folders of `PATH` and those that are searched."""
_NODE: Final = re.compile(r"/.*/node(js)?[\d.-]*")
_GEMS: Final = (
    "/usr/lib/ruby/vendor_ruby", "/usr/lib*/ruby/[0-9]*", "/usr/share/rubygems", "/usr/share/ruby",
    "/usr/local/lib/ruby/[0-9]*", "/usr/local/lib/ruby/site_ruby/[0-9]*", "/opt/*/lib/ruby/[0-9]*",
    "/opt/*/*/lib/ruby/[0-9]*", "/*/.rbenv/versions/*/lib/ruby/[0-9]*", "/usr/local/r*/versions/*/lib/ruby/[0-9]*",
)  # fmt: skip
"""Where RubyGems is, with the Ruby of a system or beside it."""
_LIBRARIES: Final = (
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/lib64",
    "/usr/lib64",
    "/lib/*-linux-*",
    "/usr/lib/*-linux-*",
    "/usr/include",
    "/usr/include/*-linux-*",
    "/usr/include/*-linux-*/bits",
    "/usr/include/*-linux-*/sys",
)
"""Where the libraries of a system and their headers are."""
_PARTS: Final = ("bin", "conda-meta", "lib", "lib64", "pyvenv.cfg")
"""The parts of a root above the working folder that do not belong to the agent."""


@dataclass(frozen=True, slots=True)
class AsBuilt:
    """What an environment was built with."""

    tools: tuple[str, ...]
    """Where its own tools are, outside the system folders, outermost only."""
    stdlibs: tuple[str, ...]
    """The standard libraries of its Python interpreters."""
    programs: frozenset[str]
    """Names of programs and shared libraries that are looked up."""
    project: bool
    """Whether there is a `pyproject.toml` in the working folder."""
    configures_uv: bool
    """Whether there are settings that uv finds in the working folder, the system or a home."""
    accounts: str = field(repr=False)
    """The text of `/etc/passwd`."""
    settings: frozenset[str] = frozenset()
    """Digests of the settings of programs of Python, outside the folders of tools and of the system."""
    gems: tuple[str, ...] = ()
    """Folders with RubyGems, which can start code of the ground folder."""
    nodes: tuple[str, ...] = ()
    """Programs of Node."""
    actions: frozenset[str] = frozenset()
    """Targets of makefiles in the working folder that are not files."""


_SKIPPED: Final = (*SYSTEM, "/opt", "/var/lib")
_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_known: Final[dict[tuple[str, str, str], AsBuilt]] = {}
"""By backend, digest of the image and working folder, which determine the result."""


async def as_built(environment: Environment) -> AsBuilt:
    """What the environment was built with, found once for each image."""
    spec = environment.preparation.spec
    key = (environment.backend.name, spec.image.digest if spec.image is not None else "", spec.workdir)
    if key not in _known:
        _known[key] = await _search(environment) if spec.image is not None else _of_this_machine()
    return _known[key]


def _stdlib(place: Path) -> str:
    """Where the start is laid: a library may consist of links into another one, through which nothing is written."""
    folder = (place / "encodings").resolve()
    return str(folder.parent if folder.name == "encodings" else place.resolve())


def _of_this_machine() -> AsBuilt:
    """The same for an environment without an image, which is the machine's userland and an empty working folder."""
    places = (place for pattern in _STDLIBS for place in Path("/").glob(pattern[1:]))
    stdlibs = [_stdlib(place) for place in places if (place / "encodings/aliases.py").is_file()]
    folders = (folder for pattern in (*_LIBRARIES, *_PATH) for folder in Path("/").glob(pattern[1:]))
    programs = frozenset(entry.name for folder in folders if folder.is_dir() for entry in os.scandir(folder))
    accounts = Path("/etc/passwd")
    text = accounts.read_text(errors="surrogateescape") if accounts.is_file() else ""
    gems = [folder for pattern in _GEMS for folder in Path("/").glob(pattern[1:]) if (folder / "rubygems.rb").is_file()]
    named = tuple(str(folder) for folder in gems if not (folder / START_OF_GEMS).exists())
    files = [place for pattern in _NODES for place in Path("/").glob(pattern[1:])]
    files += [Path(folder, name) for folder in _PATH for name in ("node", "nodejs")]
    nodes = _nodes(str(place.resolve()) for place in files if place.is_file())
    return AsBuilt(
        tools=(),
        stdlibs=tuple(dict.fromkeys(stdlibs)),
        programs=programs,
        project=False,
        configures_uv=Path("/etc/uv/uv.toml").exists(),
        accounts=text,
        gems=named,
        nodes=nodes,
    )


def _nodes(found: Iterable[str]) -> tuple[str, ...]:
    """Programs of Node, each once; a switch between versions, which has another name, is none."""
    return tuple(dict.fromkeys(path for path in found if _NODE.fullmatch(path)))


async def _search(environment: Environment) -> AsBuilt:
    declared = environment.preparation.spec
    spec = replace(declared, composition=None, mounts=(), network=NetworkPolicy("none"), limits=Limits())
    lists = {"SKIPPED": f":{':'.join(_SKIPPED)}:", "STDLIBS": ":".join(_STDLIBS), "FOLDERS": ":".join(_LIBRARIES)}
    lists |= {"SETTINGS": f":{':'.join(sorted(SETTINGS))}:__init__.py:"}
    lists |= {"NODES": ":".join(_NODES), "GEMS": " ".join(_GEMS), "START_OF_GEMS": START_OF_GEMS}
    async with environment.backend.create(spec) as pristine:
        words = {"WORKDIR": spec.workdir, **lists}
        result = await pristine.exec(_WALK, user="root", env=words, cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()[-400:] or f"exit code {result.exit_code}"
        how = f"exceeded its limit of {_TIMEOUT_SEC:g} s" if result.timed_out else f"failed: {said}"
        raise EnvironmentFailure(f"The search for tools in the environment {how}", code="listing-failed")
    found = result.stdout.decode(errors="surrogateescape").split("\0")
    stdlibs = dict.fromkeys(item[len("stdlib ") :] for item in found if item.startswith("stdlib /"))
    programs = frozenset(item[len("file ") :] for item in found if item.startswith("file "))
    accounts = next((item[len("accounts ") :] for item in found if item.startswith("accounts ")), "")
    gems = tuple(item[len("gems ") :] for item in found if item.startswith("gems "))
    nodes = _nodes(item[len("node ") :] for item in found if item.startswith("node "))
    texts = (item[len("makefile ") :] for item in found if item.startswith("makefile "))
    targets = frozenset(name for text in texts for name in makefiles.actions(text))
    settings = frozenset(item[len("setting ") :] for item in found if item.startswith("setting "))
    return AsBuilt(
        outermost(found, spec.workdir),
        tuple(stdlibs),
        programs,
        "project" in found,
        "uv" in found,
        accounts,
        settings,
        gems,
        nodes,
        targets,
    )


def outermost(found: Iterable[str], workdir: str) -> tuple[str, ...]:
    """The roots that were found, without those of the system; one above the working folder is replaced by its parts."""
    places: set[str] = set()
    for path in found:
        if not path.startswith("/"):
            continue
        folder = path.rstrip("/")
        root = folder.removesuffix("/bin")
        places |= {f"{root}/{name}" for name in _PARTS} if below(workdir, root) else {root}
    roots: list[str] = []
    for place in sorted(places):
        of_system = below(place, *SYSTEM) and not below(place, workdir)
        if not of_system and not below(workdir, place) and not below(place, *roots):
            roots.append(place)
    return tuple(roots)
