"""Processes that keep running beside a verification: services of the environment, and who could have ended them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from benchflow.environment import Environment
from benchflow.errors import Issue
from benchflow.sandbox.inside.accounts import is_root
from benchflow.sandbox.protocol import Sandbox
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.verifier.scope import Scope

if TYPE_CHECKING:
    from benchflow.sandbox.services import RunningServices

_TIMEOUT_SEC: Final = 60.0
_AGENT: Final = "agent"
"""The default user of a sandbox."""


def agent_users(sandbox: Sandbox, view: TaskRuntimeView) -> tuple[str, ...]:
    """All users that the agent of a task runs as: the user of its sandbox, and those that steps declare."""
    image = sandbox.spec.image
    own = sandbox.spec.user or (image.user if image is not None else None) or _AGENT
    steps = [str(step.config.agent.user) for step in view.steps if step.config.agent.user is not None]
    return tuple(dict.fromkeys([own, *steps]))


async def end_agent(sandbox: Sandbox, users: Iterable[str], services: RunningServices | None) -> Issue | None:
    """End the agent's processes but not those of services; a note if the two cannot be distinguished."""
    note = None
    for user in users:
        if is_root(user) or _run_as(user, services):
            message = f"The agent and the services run as {user}, so the agent's processes kept running beside them."
            note = Issue("processes-kept", "warning", "agent.user", message)
            continue
        for _ in range(2):
            await sandbox.exec("kill -KILL -1", user=user, cwd="/", timeout=_TIMEOUT_SEC)
    return note


def _run_as(user: str, services: RunningServices | None) -> bool:
    """Whether services run as that user."""
    name = user.partition(":")[0]
    return services is not None and any(other.partition(":")[0] == name for other in services.users)


async def check_services(environment: Environment, scope: Scope, *, verified: bool = False) -> list[Issue]:
    """Raise if a service of the environment has ended and the agent cannot have caused that; a note if it can.

    Otherwise an agent could avoid a bad score by ending a service. After the work was `verified` it is always a note,
    because verifiers may end services themselves.
    """
    failure = await environment.services.failure() if environment.services is not None else None
    if failure is None:
        return []
    suspect = _who_could_end_services(environment, scope)
    if suspect is None and verified:
        suspect = "It was up when verification began."
    if suspect is None:
        raise failure
    return [Issue("service-ended", "warning", "environment.services", f"{str(failure).splitlines()[0]} {suspect}")]


def _who_could_end_services(environment: Environment, scope: Scope) -> str | None:
    """Why the agent had the permission to end a service, in a sentence; None if it had not."""
    if scope.isolation.keeps_processes:
        return "The package declares running processes as the solution, so keeping it running was part of the task."
    sandbox = environment.sandbox
    for user in agent_users(sandbox, scope.view):
        if is_root(user) or _run_as(user, environment.services):
            return f"The agent runs as {user} and could have ended it, so the score stands."
    if "users" not in sandbox.capabilities:
        return "All users have the same id in this sandbox, so the agent could have ended it and the score stands."
    return None
