"""Verification in the agent's own file system: on a fork in which all that could act on the verifier is pristine.

If the package declares that processes must stay alive, and some do, the agent's box itself is used; see `live`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from benchflow.environment import Environment
from benchflow.errors import SandboxFailure
from benchflow.sandbox.protocol import OF_THE_FILE, Change, Sandbox
from benchflow.sandbox.task_policy import asset_mounts, network_policy
from benchflow.verifier.built import built_tools
from benchflow.verifier.hooks import SECTION_FILES
from benchflow.verifier.pytest_sections import settle_section
from benchflow.verifier.scope import Scope, words_of
from benchflow.verifier.survival import Rules, Withheld, below, lookup_folders, withhold

_LARGEST_SETTING: Final = 1 << 20


async def survival_rules(environment: Environment, sandbox: Sandbox, scope: Scope) -> Rules:
    """What may survive of the agent's changes in this sandbox of the environment."""
    spec = sandbox.spec
    env = {**(spec.image.env if spec.image is not None else {}), **spec.env}
    lookup, modules = lookup_folders(env, spec.workdir)
    built = () if scope.opt_outs.keep_system_changes else await built_tools(environment)
    return Rules(
        workdir=spec.workdir,
        lookup=lookup,
        built=built,
        modules=modules,
        keep_system=scope.opt_outs.keep_system_changes,
        keep_hooks=scope.opt_outs.keep_hooks,
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
        known = [item.path for item in self.withheld]
        self.withheld += [
            Withheld(change.path, change.kind, "link")
            for change in changes
            if change.type == "symlink" and below(change.path, *self.without_links) and not below(change.path, *known)
        ]
        gone = [item.path for item in self.withheld]
        if not self.rules.keep_hooks:
            self.sections = [change for change in changes if self._has_section(change, gone)]
        return gone

    def _has_section(self, change: Change, gone: list[str]) -> bool:
        return (
            change.path.rpartition("/")[2] in SECTION_FILES
            and change.type == "file"
            and change.kind != "deleted"
            and below(change.path, self.rules.workdir)
            and not below(change.path, *gone)
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

    It runs `beside` the services of a composition, which then use the verifier's network; otherwise they are copied.
    """
    survivors = Survivors(await survival_rules(environment, sandbox, scope), without_links)
    mounts = [mount for mount in asset_mounts(scope.view, "verifier") if mount not in sandbox.spec.mounts]
    network = scope.network(network_policy(scope.view, "verifier"))
    fork = sandbox.fork_beside if beside else sandbox.fork
    forked = await fork(mounts=mounts, network=network, revert=survivors.choose)
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
