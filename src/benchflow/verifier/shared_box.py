"""Verification in the agent's own file system: on a fork in which all that could act on the verifier is pristine.

If the package declares that processes must stay alive, and some do, the agent's box itself is used; see `live`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, SandboxFailure
from benchflow.files.path_set import PathSet
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Limits, NetworkPolicy, Sandbox
from benchflow.sandbox.task_policy import asset_mounts, network_policy
from benchflow.verifier.scope import Scope, words_of
from benchflow.verifier.survival import SCOPE, SECTION_FILES, SYSTEM, Rules, Withheld, below, lookup_folders, withhold

_LARGEST_SETTING: Final = 1 << 20


async def survival_rules(environment: Environment, sandbox: Sandbox, scope: Scope) -> Rules:
    """What may survive of the agent's changes in this sandbox of the environment."""
    spec = sandbox.spec
    env = {**(spec.image.env if spec.image is not None else {}), **spec.env}
    lookup, modules = lookup_folders(env, spec.workdir)
    built = () if scope.isolation.keeps_system else await built_tools(environment)
    return Rules(
        workdir=spec.workdir,
        lookup=lookup,
        built=built,
        modules=modules,
        keep_system=scope.isolation.keeps_system,
        keep_hooks=not scope.config.hardening.cleanup_conftests,
        expected=words_of(scope.prompt),
        mounted=tuple(mount.target for mount in spec.mounts),
    )


@dataclass(slots=True)
class Survivors:
    """Chooses and records what a fork does not take over. `without_links` are folders that must have no links."""

    rules: Rules
    without_links: tuple[str, ...] = ()
    withheld: list[Withheld] = field(default_factory=list)
    sections: list[Change] = field(default_factory=list)
    """Settings files that survive except for one section."""

    def choose(self, changes: Sequence[Change]) -> list[str]:
        self.withheld = withhold(changes, self.rules)
        known, folders = PathSet(item.path for item in self.withheld), PathSet(self.without_links)
        self.withheld += [
            Withheld(change.path, change.kind, "link")
            for change in changes
            if change.type == "symlink" and folders.covers(change.path) and not known.covers(change.path)
        ]
        gone = [item.path for item in self.withheld]
        if not self.rules.keep_hooks:
            left = PathSet(gone)
            self.sections = [change for change in changes if self._has_section(change, left)]
        return gone

    def _has_section(self, change: Change, gone: PathSet) -> bool:
        return (
            change.path.rpartition("/")[2] in SECTION_FILES
            and change.type == "file"
            and change.kind != "deleted"
            and below(change.path, self.rules.workdir)
            and not gone.covers(change.path)
        )


async def fork_for_verification(
    environment: Environment,
    sandbox: Sandbox,
    scope: Scope,
    without_links: tuple[str, ...] = (),
    *,
    beside: bool = True,
) -> tuple[Sandbox, Survivors]:
    """A started copy of the agent's sandbox with what may survive, with the verifier's mounts and network.

    It runs `beside` what keeps running and can use it; otherwise services of a composition are copied.
    """
    survivors = Survivors(await survival_rules(environment, sandbox, scope), without_links)
    mounts = [mount for mount in asset_mounts(scope.view, "verifier") if mount not in sandbox.spec.mounts]
    network = scope.network(network_policy(scope.view, "verifier"))
    options: Any = {"mounts": mounts, "network": network, "revert": survivors.choose}
    forked = await (sandbox.fork_beside(**options, closed=SCOPE) if beside else sandbox.fork(**options))
    try:
        if survivors.sections:
            await _settle_sections(environment, forked, survivors)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await forked.stop()
        raise
    return forked, survivors


async def _settle_sections(environment: Environment, forked: Sandbox, survivors: Survivors) -> None:
    """Restore the pytest section of changed settings files from the environment."""
    pristine: Sandbox | None = None
    try:
        for change in survivors.sections:
            former: str | None = None
            if change.kind == "changed":
                alone = replace(environment.preparation.spec, composition=None)
                pristine = pristine or await _started(environment.backend.create(alone))
                former = await _text(pristine, change.path)
            text = await _text(forked, change.path)
            settled = settle_section(change.path.rpartition("/")[2], text or "", former)
            if settled is not None:
                await forked.write_file(change.path, settled.encode())
                survivors.withheld.append(Withheld(change.path, change.kind, "hook"))
    finally:
        if pristine is not None:
            with anyio.CancelScope(shield=True):
                await pristine.stop()


async def _started(sandbox: Sandbox) -> Sandbox:
    await sandbox.start()
    return sandbox


async def _text(sandbox: Sandbox, path: str) -> str | None:
    """The text of a settings file; None if it is not a readable file."""
    try:
        return (await sandbox.read_file(path, max_bytes=_LARGEST_SETTING)).decode("utf-8", "replace")
    except SandboxFailure as error:
        if error.code not in OF_THE_FILE:
            raise
        return None


_TIMEOUT_SEC: Final = 300.0
_WALK: Final = r"""
look() {
  [ -d "$1" ] || return 0
  found=
  case $1 in */node_modules) found=yes;; esac
  [ -d "$1/conda-meta" ] && found=yes
  if [ -f "$1/pyvenv.cfg" ]; then
    found=yes
    while IFS= read -r line || [ -n "$line" ]; do
      case $line in "home = "*) printf '%s\0' "${line#home = }";; esac
    done <"$1/pyvenv.cfg"
  fi
  if [ "$found" ]; then
    printf '%s\0' "$1"
    case $WORKDIR/ in "$1"/*) ;; *) return 0;; esac
  fi
  [ -L "$1" ] || walk "$1"
}
walk() {
  for entry in "$1"/* "$1"/.[!.]*; do
    case $SKIPPED in *":$entry:"*) ;; *) look "$entry";; esac
  done
}
walk ""
look "$WORKDIR"
"""
"""Prints roots of tools and the home of virtual environments. A link to such a root is one too."""

_PARTS: Final = ("bin", "conda-meta", "lib", "lib64", "pyvenv.cfg")
"""The parts of a root above the working folder that do not belong to the agent."""

_known: Final[dict[tuple[str, str, str], tuple[str, ...]]] = {}
"""By backend, digest of the image and working folder, which determine the result."""


async def built_tools(environment: Environment) -> tuple[str, ...]:
    """Where the environment's own tools are, outside the system folders, outermost only.

    An environment without an image is the machine's userland, which has none.
    """
    spec = environment.preparation.spec
    if spec.image is None:
        return ()
    key = (environment.backend.name, spec.image.digest, spec.workdir)
    if key not in _known:
        _known[key] = await _search(environment)
    return _known[key]


async def _search(environment: Environment) -> tuple[str, ...]:
    declared = environment.preparation.spec
    spec = replace(declared, composition=None, mounts=(), network=NetworkPolicy("none"), limits=Limits())
    pristine = environment.backend.create(spec)
    await pristine.start()
    try:
        words = {"WORKDIR": spec.workdir, "SKIPPED": f":{':'.join(SYSTEM)}:"}
        result = await pristine.exec(_WALK, user="root", env=words, cwd="/", timeout=_TIMEOUT_SEC)
    finally:
        with anyio.CancelScope(shield=True):
            await pristine.stop()
    if not result.ok:
        said = result.stderr.decode(errors="replace").strip()[-400:] or f"exit code {result.exit_code}"
        how = f"exceeded its limit of {_TIMEOUT_SEC:g} s" if result.timed_out else f"failed: {said}"
        raise EnvironmentFailure(f"The search for tools in the environment {how}", code="listing-failed")
    return outermost(result.stdout.decode(errors="surrogateescape").split("\0"), spec.workdir)


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


_SECTIONS: Final = {"setup.cfg": ("tool:pytest", "pytest"), "tox.ini": ("pytest", "tool:pytest")}
_HEADER: Final = re.compile(r"\[(.*?)\]")


def settle_section(name: str, text: str, pristine: str | None) -> str | None:
    """The text of a file called `name` with the pytest section of `pristine` (None: there was no file).

    None if the text needs no change. A file that cannot be parsed is left alone: pytest refuses it too.
    """
    return _toml(text, pristine) if name == "pyproject.toml" else _ini(text, pristine, _SECTIONS[name])


def _toml(text: str, pristine: str | None) -> str | None:
    found, former = _parse(text), _parse(pristine or "")
    if found is None or _pytest(found) == _pytest(former or {}):
        return None
    import tomli_w

    tool = {key: value for key, value in found.get("tool", {}).items() if key != "pytest"}
    wanted = _pytest(former or {})
    if wanted is not None:
        tool["pytest"] = wanted
    return tomli_w.dumps({**{key: value for key, value in found.items() if key != "tool"}, "tool": tool})


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _pytest(document: dict[str, Any]) -> Any:
    tool = document.get("tool")
    return tool.get("pytest") if isinstance(tool, dict) else None


def _ini(text: str, pristine: str | None, names: tuple[str, ...]) -> str | None:
    rest, found = _cut(text, names)
    _, former = _cut(pristine or "", names)
    if found == former:
        return None
    return "".join([rest if rest.endswith("\n") or not rest else rest + "\n", *former])


def _cut(text: str, names: tuple[str, ...]) -> tuple[str, list[str]]:
    """A text without the named sections, and those sections."""
    rest: list[str] = []
    cut: list[str] = []
    target = rest
    for line in text.splitlines(keepends=True):
        header = _HEADER.match(line)
        if header:
            target = cut if header[1].strip() in names else rest
        target.append(line if line.endswith("\n") else line + "\n")
    return "".join(rest) if cut else text, cut
