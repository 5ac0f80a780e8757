"""What a task needs of a node: from its package, or its cube, and the request of the job. Nothing is started.

What the local engine reports as a result on any machine needs nothing here: an invalid package, or one that no sandbox
supports, gets the same result on every node. Of the machine's variables, those without which nothing starts are needed,
and those that are set where the job is planned: an agent that calls another server there would be another agent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Final

from benchflow.agents.registry import agent_kind, create_agent
from benchflow.errors import UsageError
from benchflow.evaluation.cubes import DEBUG
from benchflow.evaluation.scaled.abilities import CubeNeed, Demand
from benchflow.evaluation.scaled.facts import cube_digest
from benchflow.evaluation.work import TaskRef
from benchflow.models.chat import model_variables
from benchflow.models.gateway.upstreams import PROVIDERS
from benchflow.models.gateway.upstreams import VARIABLE as MODELS_FILE
from benchflow.record import JobRequest, always_wins
from benchflow.rollout.plan import secret_scopes
from benchflow.rollout.policies import forwarded, judge_models, taken_variables, variable_tables
from benchflow.sandbox.backends import LOCAL, load_backend
from benchflow.sandbox.factory import AUTO, HOST, possible_backends
from benchflow.sandbox.task_policy import needed_capabilities, required_variables
from benchflow.task.package import TaskPackage
from benchflow.task.runtime_capabilities import validate_task_runtime_support
from benchflow.task.runtime_view import TaskRuntimeView

_MODEL: Final = "model"
_ORACLE: Final = "oracle"
Players = tuple[tuple[str, str | None], ...]


def demand_of(task: TaskRef, request: JobRequest, environ: Mapping[str, str]) -> Demand:
    """What `task` needs of a node; `environ` are the variables where the job is planned."""
    if isinstance(task.payload, TaskPackage):
        return _of_package(task.payload, request, environ, task.environment)
    benchmark, _ = task.payload
    players = () if request.agent == DEBUG else _players(request)
    cube = CubeNeed(benchmark, cube_digest(benchmark) or "")
    return Demand(variables=_of_agents(players, environ), agents=players, cube=cube)


def _of_package(
    package: TaskPackage, request: JobRequest, environ: Mapping[str, str], environment: str | None
) -> Demand:
    if not package.valid:
        return Demand()
    sandboxes = _sandboxes(package, request)
    if not sandboxes:
        return Demand()
    view = package.view
    players = _playing(package, request)
    judged, keys_of_judges = _of_models(judge_models(view), environ)
    return Demand(
        processors=_most(view, "cpus"),
        memory_mb=_whole(_most(view, "memory_mb")),
        storage_mb=_whole(_most(view, "storage_mb")),
        sandboxes=sandboxes,
        capabilities=tuple(sorted(needed_capabilities(view).items())),
        variables=_of_view(view, request.agent, environ) | _of_agents(players, environ) | judged,
        one_of=keys_of_judges,
        agents=players,
        base_image=request.base_image if request.base_image != HOST else None,
        environment=environment,
    )


def _sandboxes(package: TaskPackage, request: JobRequest) -> tuple[str, ...]:
    """The backends of which one must work; none if no node could help."""
    if request.sandbox == AUTO:
        names = possible_backends(package, request.base_image) or (LOCAL.name,)
        return tuple(name for name in names if not validate_task_runtime_support(package, sandbox=name))
    declared = load_backend(request.sandbox).declared
    refused = validate_task_runtime_support(package, sandbox=request.sandbox, capabilities=declared)
    return () if refused else (request.sandbox,)


def _most(view: TaskRuntimeView, name: str) -> float | None:
    """What a rollout declares at most: the sandbox of the agent waits while that of a verifier works."""
    config = view.config
    verifiers = (config.verifier, *(step.config.verifier for step in view.steps))
    boxes = (config.environment, *(verifier.environment for verifier in verifiers))
    return max((getattr(box, name) for box in boxes if box is not None and name in box.declared), default=None)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _players(request: JobRequest) -> Players:
    """Everybody who plays on nodes: participants with an address of their own are elsewhere."""
    return tuple(dict.fromkeys((each.agent, each.model) for each in request.players if each.url is None))


def _playing(package: TaskPackage, request: JobRequest) -> Players:
    """The agents of the job, and those that the package names for its roles."""
    document = package.document
    if document is None or not document.scenes or always_wins(request.agent):
        return _players(request)
    named = tuple((role.agent, role.model) for role in document.roles.values() if role.agent)
    return tuple(dict.fromkeys((*named, *(_players(request) if len(named) < len(document.roles) else ()))))


def _of_view(view: TaskRuntimeView, agent: str, environ: Mapping[str, str]) -> frozenset[str]:
    """Variables that the package takes from the machine."""
    scopes = secret_scopes(agent)
    required = {*forwarded(view), *(name for table in variable_tables(view) for name in required_variables(table))}
    if agent == _ORACLE:
        required |= required_variables(view.config.oracle.env)
    wanted = set(taken_variables(view))
    for secret in view.namespace.secrets:
        name = secret.env or secret.name
        if secret.scope in scopes and secret.required:
            required.add(name)
        elif secret.scope in scopes or secret.scope == "image-pull":
            wanted.add(name)
    return frozenset(required | {name for name in wanted if environ.get(name)})


def _of_agents(players: Players, environ: Mapping[str, str]) -> frozenset[str]:
    """Addresses of servers that are set here, and the model map; whether keys are there, nodes find out by a check."""
    read = (name for agent, model in players for name in _read_by(agent, model, environ))
    return frozenset(name for name in read if environ.get(name))


def _read_by(agent: str, model: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    info = agent_kind(agent).info
    if info.name == _MODEL:
        _, addresses = model_variables(agent.partition(":")[2] or model or "")
        yield from addresses
        yield MODELS_FILE
    elif info.models is None:  # a plugin that only tells what it reads
        with suppress(UsageError):
            yield from create_agent(agent, model, environ=environ).variables()
    elif info.models != "none":
        yield from (base for each in PROVIDERS.values() if each.family in info.dialects for base in each.bases)
        yield from info.takes
        yield MODELS_FILE


def _of_models(models: frozenset[str], environ: Mapping[str, str]) -> tuple[frozenset[str], tuple[frozenset[str], ...]]:
    """The key and the address of each judge, as far as they are set here."""
    names: set[str] = set()
    groups: list[frozenset[str]] = []
    for model in sorted(models):
        keys, addresses = model_variables(model)
        names |= {name for name in addresses if environ.get(name)}
        known = frozenset(name for name in keys if environ.get(name))
        groups += [known] if known else []
    return frozenset(names), tuple(dict.fromkeys(groups))
