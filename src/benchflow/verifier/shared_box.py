"""Verification on a copy of the agent's files in which all that could act on the verifier is as built.

`fork_for_verification` makes the copy and says what it does not take over; `as_built` is what an image was built with.
"""

from __future__ import annotations

import os
import posixpath
import re
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
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
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Limits, NetworkPolicy, Sandbox, SandboxSpec
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
from benchflow.verifier.surviving import loader_cache, makefiles, node_packages, own_account, repositories
from benchflow.verifier.surviving.built_places import lookup_folders, software_places, start_paths
from benchflow.verifier.surviving.built_search import FOLLOW, SEARCH
from benchflow.verifier.surviving.made_places import MadeByVerifier
from benchflow.verifier.surviving.missed_lookups import MissedPaths, may_be_looked_for
from benchflow.verifier.surviving.start_files import NAME_SERVICES
from benchflow.verifier.surviving.survival import (
    SCOPE,
    SETTINGS,
    SYSTEM,
    Rules,
    Withheld,
    below,
    is_usual_home,
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
    env = _variables(spec)
    built = await as_built(environment)
    everything = scope.isolation.rung == "open"
    own, words = home_as_built(built, env, scope.user), words_of(scope.prompt)
    named = paths_of(scope.prompt) | {_PROMPT, *(artifact.source for artifact in scope.artifacts)}
    homes = _other_homes(built.accounts, own)
    software = software_places(
        [*built.folders, *lookup_folders(env, spec.workdir)],
        built.linked,
        built.projects,
        workdir=spec.workdir,
        homes=[*homes, own or "/"],
        named=named,
        words=frozenset(word.casefold() for word in words),
    )
    return Rules(
        workdir=spec.workdir,
        scope=tuple(place for place in SCOPE if place in scope.places or place not in (VERIFIER, TESTS)),
        lookup=lookup_folders(env, spec.workdir),
        built=built.tools,
        software=software,
        starts=tuple(dict.fromkeys([*start_paths(env, spec.workdir), *built.starts])),
        user_base=env.get("PYTHONUSERBASE", "").rstrip("/") or None,
        programs=built.programs,
        keep_system=scope.isolation.keeps_system and not everything and not scope.system_as_built,
        keep_hooks=everything or not scope.config.hardening.cleanup_conftests,
        keep_all=everything,
        expected=words,
        named=named,
        mounted=tuple(mount.target for mount in spec.mounts),
        home=own,
        homes=homes,
        early=early_modules(built.stdlibs),
        missed=scope.missed or MissedPaths(),
        made=scope.made or MadeByVerifier(),
    )


def _variables(spec: SandboxSpec) -> dict[str, str]:
    return {**(spec.image.env if spec.image is not None else {}), **spec.env}


def _other_homes(accounts: str, own: str | None) -> tuple[str, ...]:
    """Homes in the text of `/etc/passwd` that are neither the verifier's nor at the usual place nor of the system."""
    fields = [line.split(":") for line in accounts.splitlines()]
    homes = dict.fromkeys("/" + line[5].strip("/") for line in fields if len(line) > 5)
    return tuple(
        home for home in homes if home not in ("/", own) and not is_usual_home(home) and not below(home, *SYSTEM)
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
    all_changes: Sequence[Change] = ()

    def choose(self, changes: Sequence[Change]) -> list[str]:
        self.all_changes = changes
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
        if rules.keep_system and any(item.path == loader_cache.CACHE for item in survivors.withheld):
            await loader_cache.settle(forked)
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
_LINKING: Final = (
    "/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/*-linux-*",
    "/usr/local/lib",
    "/usr/lib/node_modules",
    "/usr/local/lib/node_modules",
)
"""Where links stand for programs, libraries and packages that are somewhere else."""
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
    folders: tuple[str, ...] = ()
    """The folders of `PATH`, without links."""
    linked: tuple[str, ...] = ()
    """Files outside the system to which links among its programs and libraries lead."""
    projects: tuple[str, ...] = ()
    """Folders outside site folders from which Python and Node import packages that are installed there."""
    starts: tuple[str, ...] = ()
    """What variables give to programs for their start, without links."""


_INSIDE: Final = rf"^({'|'.join(place for place in (*SYSTEM, '/opt') if place != '/dev')})(/|$)"
_SKIPPED: Final = (*SYSTEM, "/opt", "/var/lib")
_PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_known: Final[dict[tuple[str, str, str, Hashable], AsBuilt]] = {}
"""By backend, digest of the image, working folder and variables, which determine the result."""


async def as_built(environment: Environment) -> AsBuilt:
    """What the environment was built with, found once for each image."""
    spec = environment.preparation.spec
    key = (
        environment.backend.name,
        spec.image.digest if spec.image is not None else "",
        spec.workdir,
        frozenset(spec.env.items()),
    )
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
    lists |= {
        "STARTS": ":".join(start_paths(_variables(declared), spec.workdir)),
        "INSIDE": _INSIDE,
        "FOLLOW": FOLLOW,
        "LINKING": ":".join(_LINKING),
    }
    lists |= {"NODES": ":".join(_NODES), "GEMS": " ".join(_GEMS), "START_OF_GEMS": START_OF_GEMS}
    async with environment.backend.create(spec) as pristine:
        variables = {"WORKDIR": spec.workdir, **lists}
        result = await pristine.exec(SEARCH, user="root", env=variables, cwd="/", timeout=_TIMEOUT_SEC)
    if not result.ok:
        words = result.stderr.decode(errors="replace").strip()[-400:] or f"exit code {result.exit_code}"
        how = f"exceeded its limit of {_TIMEOUT_SEC:g} s" if result.timed_out else f"failed: {words}"
        raise EnvironmentFailure(f"The search for tools in the environment {how}", code="listing-failed")
    found = result.stdout.decode(errors="surrogateescape").split("\0")

    def said(word: str) -> dict[str, None]:
        return dict.fromkeys(item[len(word) + 1 :] for item in found if item.startswith(f"{word} "))

    def places(word: str) -> tuple[str, ...]:
        return tuple(posixpath.normpath(item) for item in said(word) if item.startswith("/"))

    return AsBuilt(
        outermost(found, spec.workdir),
        places("stdlib"),
        frozenset(said("file")),
        "project" in found,
        "uv" in found,
        next(iter(said("accounts")), ""),
        frozenset(said("setting")),
        tuple(said("gems")),
        _nodes(said("node")),
        frozenset(name for text in said("makefile") for name in makefiles.actions(text)),
        places("folder"),
        places("linked"),
        places("project"),
        places("start"),
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
