"""Verification in the agent's box itself, if the solution is a running process or services must keep running.

Nothing can be reverted under running processes: files that the agent planted to act on programs are removed, its
changes stay, and both are recorded. The verifier's files are removed when it has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from benchflow.environment import Environment
from benchflow.errors import Issue, SandboxFailure
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import ExecResult, Sandbox
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.verifier.scope import GROUND, LOGS, TESTS, VERIFIER, Scope
from benchflow.verifier.survival import Rules, Withheld, withhold

_TIMEOUT_SEC: Final = 60.0
_AT_ONCE: Final = 500
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_AGENT: Final = "agent"
"""The default user of a sandbox."""


def agent_users(sandbox: Sandbox, view: TaskRuntimeView) -> tuple[str, ...]:
    """All users that the agent of a task runs as: the user of its sandbox, and those that steps declare."""
    image = sandbox.spec.image
    own = sandbox.spec.user or (image.user if image is not None else None) or _AGENT
    steps = [str(step.config.agent.user) for step in view.steps if step.config.agent.user is not None]
    return tuple(dict.fromkeys([own, *steps]))


async def end_agent(sandbox: Sandbox, users: Iterable[str]) -> Issue | None:
    """End the agent's processes but not those of services; a note if the two cannot be distinguished."""
    note = None
    for user in users:
        if is_root(user):
            message = "The agent and the services run as root, so their processes could not be distinguished."
            note = Issue("processes-kept", "warning", "agent.user", message)
            continue
        for _ in range(2):
            await sandbox.exec("kill -KILL -1", user=user, cwd="/", timeout=_TIMEOUT_SEC)
    return note


async def check_services(environment: Environment, scope: Scope, *, verified: bool = False) -> list[Issue]:
    """Raise if a service of the environment has ended and the agent cannot have caused that; a note if it can.

    Otherwise an agent could avoid a bad score by ending a service. After the work was `verified` it is always a note,
    because verifiers may end services themselves.
    """
    failure = await environment.services.failure() if environment.services is not None else None
    if failure is None:
        return []
    suspect = _who_could_end_services(environment.sandbox, scope)
    if suspect is None and verified:
        suspect = "It was up when verification began."
    if suspect is None:
        raise failure
    return [Issue("service-ended", "warning", "environment.services", f"{str(failure).splitlines()[0]} {suspect}")]


def _who_could_end_services(sandbox: Sandbox, scope: Scope) -> str | None:
    """Why the agent had the permission to end a service, in a sentence; None if it had not."""
    if scope.isolation.keeps_processes:
        return "The package declares running processes as the solution, so keeping it running was part of the task."
    if any(is_root(user) for user in agent_users(sandbox, scope.view)):
        return "The agent runs as root and could have ended it, so the score stands."
    if "users" not in sandbox.capabilities:
        return "All users have the same id in this sandbox, so the agent could have ended it and the score stands."
    return None


async def clear_place(sandbox: Sandbox) -> None:
    """Remove everything at the place of the verifier's files."""
    command = f"for p in /logs {LOGS}; do [ ! -L $p ] || rm -f $p; done; rm -rf {VERIFIER} {TESTS} {LOGS} {GROUND}"
    result = await _as_root(sandbox, command)
    if not result.ok:
        raise SandboxFailure("The place of the verifier's files could not be cleared.", code="cleanup-failed")


async def remove_hooks(sandbox: Sandbox, rules: Rules, *, contested: bool) -> tuple[list[Withheld], list[Issue]]:
    """Remove files that the agent planted to act on the verifier; a note about changes that cannot be reverted.

    What cannot be removed is part of that note if it is `contested` by processes of the agent, otherwise a failure.
    """
    found = [item for item in withhold(await sandbox.changes(), rules) if item.reason != "scope"]
    planted = [item for item in found if item.kind == "added"]
    kept = [item.path for item in found if item.kind != "added"]
    for start in range(0, len(planted), _AT_ONCE):
        paths = [item.path for item in planted[start : start + _AT_ONCE]]
        if (await _as_root(sandbox, f"rm -rf -- {shlex.join(paths)}")).ok:
            continue
        if not contested:
            raise SandboxFailure("Files that the agent planted could not be removed.", code="cleanup-failed")
        kept += paths
    if not kept:
        return planted, []
    message = f"Changed by the agent and not reverted, because its processes are still running: {', '.join(kept[:20])}"
    return planted, [Issue("changes-kept", "warning", "verifier.isolation", message)]


async def _as_root(sandbox: Sandbox, command: str) -> ExecResult:
    """Run one of our own commands, with system programs only: others may be the agent's here."""
    return await sandbox.exec(command, user="root", env={"PATH": _PATH}, cwd="/", timeout=_TIMEOUT_SEC)
