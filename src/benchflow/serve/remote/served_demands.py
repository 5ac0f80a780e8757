"""What the tasks of a server need of the nodes that play them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from benchflow.evaluation.scaled.abilities import Demand
from benchflow.evaluation.scaled.demand import demand_of
from benchflow.evaluation.work import TaskRef
from benchflow.gym.shared import PACKAGES
from benchflow.record import JobRequest, TaskId
from benchflow.serve.served_tasks import ServedTask

_NOBODY: Final = "nop"
"""The agent is the client's, and needs nothing of a node."""


def demand_of_served(task: ServedTask, request: JobRequest, environ: Mapping[str, str]) -> Demand:
    """What an episode of a task needs of a node; `environ` are the variables of the server."""
    request = replace(request, agent=_NOBODY)
    if isinstance(task.payload, TaskRef):
        return replace(demand_of(task.payload, request, environ), agents=())
    package = PACKAGES.load(task.payload)
    ref = TaskRef(TaskId(task.id, task.digest), task.id, task.digest, payload=package)
    found = demand_of(ref, request, environ)
    if not found.sandboxes:
        return found
    secrets = (secret for secret in package.view.namespace.secrets if secret.scope == "agent")
    names = {secret.env or secret.name: secret.required for secret in secrets}
    wanted = {name for name, required in names.items() if required or environ.get(name)}
    return replace(found, agents=(), variables=found.variables | wanted)
