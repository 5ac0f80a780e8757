"""Processes that keep running beside a verification: services of the environment, and who could have ended them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from benchflow.environment import Environment
from benchflow.errors import EnvironmentFailure, Issue, SandboxFailure
from benchflow.sandbox.inside.accounts import UnknownUser, find_account
from benchflow.sandbox.protocol import OF_THE_FILE, FailedService, Sandbox
from benchflow.sandbox.task_policy import agent_users
from benchflow.verifier.scope import Scope

if TYPE_CHECKING:
    from benchflow.sandbox.services import RunningServices

_TIMEOUT_SEC: Final = 60.0


async def end_agent(sandbox: Sandbox, users: Iterable[str], services: RunningServices | None) -> Issue | None:
    """End the agent's processes but not those of services; a note if the two cannot be distinguished."""
    note = None
    accounts = await _passwd(sandbox)
    for user in users:
        if _may_signal(user, services, accounts):
            message = f"The agent and the services run as {user}, so the agent's processes kept running beside them."
            note = Issue("processes-kept", "warning", "agent.user", message)
            continue
        for _ in range(2):
            await sandbox.exec("kill -KILL -1", user=user, cwd="/", timeout=_TIMEOUT_SEC)
    return note


async def _passwd(sandbox: Sandbox) -> str:
    """The accounts of an environment; without the file there are no names but those that every sandbox knows."""
    try:
        return (await sandbox.read_file("/etc/passwd")).decode(errors="replace")
    except SandboxFailure as error:
        if error.code not in OF_THE_FILE:
            raise
        return ""


def _may_signal(user: str, services: RunningServices | None, passwd: str) -> bool:
    """Whether a user is root or runs services. Ids are compared, because an id may have several names; a name without
    an id could be anybody."""
    own = _uid(user, passwd)
    others = services.users if services is not None else ()
    return own in (None, 0) or any(_uid(other, passwd) in (None, own) for other in others)


def _uid(user: str, passwd: str) -> int | None:
    try:
        return find_account(user.partition(":")[0], passwd, "").uid
    except UnknownUser:
        return None


def judge_ended(services: Iterable[FailedService], scope: Scope) -> list[Issue]:
    """Raise if the agent cannot have caused that services of a compose file have ended; a note on each if it can.

    Services run in sandboxes of their own, where no process of the agent's can signal them. But one that listens can be
    ended by what it is sent, and can pass that on to others: then the score stands.
    """
    notes = []
    for failed in services:
        if not failed.reachable and not scope.isolation.keeps_processes:
            raise EnvironmentFailure(failed.reason, code="service-failed", path="environment.services")
        what = failed.reason.partition(" Its last lines:")[0]
        message = f"{what} The agent could reach the services, so the score stands."
        notes.append(Issue("service-ended", "warning", "environment.services", message))
    return notes


async def check_services(environment: Environment, scope: Scope, *, verified: bool = False) -> list[Issue]:
    """Raise if a service of the environment has ended and the agent cannot have caused that; a note if it can.

    Otherwise an agent could avoid a bad score by ending a service. After the work was `verified` it is always a note,
    because verifiers may end services themselves.
    """
    failure = await environment.services.failure() if environment.services is not None else None
    if failure is None:
        return []
    suspect = await _who_could_end_services(environment, scope)
    if suspect is None and verified:
        suspect = "It was up when verification began."
    if suspect is None:
        raise failure
    return [Issue("service-ended", "warning", "environment.services", f"{str(failure).splitlines()[0]} {suspect}")]


async def _who_could_end_services(environment: Environment, scope: Scope) -> str | None:
    """Why the agent had the permission to end a service, in a sentence; None if it had not."""
    if scope.isolation.keeps_processes:
        return "The package declares running processes as the solution, so keeping it running was part of the task."
    sandbox = environment.sandbox
    accounts = await _passwd(sandbox)
    for user in agent_users(sandbox.spec, scope.view):
        if _may_signal(user, environment.services, accounts):
            return f"The agent runs as {user} and could have ended it, so the score stands."
    if "users" not in sandbox.capabilities:
        return "All users have the same id in this sandbox, so the agent could have ended it and the score stands."
    return None
