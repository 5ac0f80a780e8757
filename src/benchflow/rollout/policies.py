"""The policies of a package in one rollout: tools, skills, secrets of each scope, isolation, and the audit afterwards.

Whether package and machine are ready is checked before an agent costs anything: a text with placeholders is not a
finished task, and a judge without its key cannot score. Networks are `benchflow.sandbox.task_policy`'s.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from benchflow.agents.oracle_agent import SCRIPT
from benchflow.errors import (
    AgentFailure,
    EnvironmentFailure,
    Issue,
    JudgeFailure,
    PackageError,
    UnsupportedError,
    UsageError,
)
from benchflow.files.redaction import SHORTEST_DECLARED, secret_values
from benchflow.record import Isolation, Rung, ToolAudit
from benchflow.sandbox.factory import ChosenIsolation
from benchflow.sandbox.machine_settings.allowance import allows
from benchflow.sandbox.task_policy import referenced_variables
from benchflow.task.config.namespace import AgentPolicy
from benchflow.task.config.task_config import AUTO, OPEN, RUNGS
from benchflow.task.package import TaskPackage
from benchflow.task.package_scaffold import MARKER
from benchflow.task.runtime_capabilities import COMPOSE_FILES
from benchflow.task.runtime_view import TaskRuntimeView
from benchflow.task.verifier.declared_strategies import (
    AgentJudgeStrategy,
    AssessorStrategy,
    GainStrategy,
    HybridStrategy,
    LLMJudgeStrategy,
)
from benchflow.verifier.scope import Scope, config_of, scope_of, verifier_variables

if TYPE_CHECKING:
    from benchflow.models.called_tools import WireTools

SEARCH_TOOLS: Final = frozenset(
    (
        "web_search",
        "websearch",
        "web-search",
        "search_web",
        "google_search",
        "web_fetch",
        "webfetch",
        "fetch",
        "browser",
    )
)
"""Tools that search outside; forbidden if search is disabled."""
ISOLATION_KEY: Final = "verifier.isolation"
Chosen = Mapping[str | None, ChosenIsolation]
"""The isolation of verifiers by step, where the user or a proof chooses it."""
_POLICY: Final = "benchflow.agent_policy"
_MARKER: Final = MARKER.encode()
_MARKER_LEFT: Final = "marker-left"
_HELD_OUT: Final = ("oracle/", "solution/")
_CODES: Final = {"extra-missing": "judge-not-installed", "key-missing": "judge-key-missing"}


def forbidden_tools(policy: AgentPolicy | None) -> frozenset[str]:
    """Names of the tools that the agent may not call."""
    if policy is None:
        return frozenset()
    search = SEARCH_TOOLS if policy.search == "disabled" else frozenset()
    return frozenset(policy.forbidden_tools) | search


def normal_tool(name: str) -> str:
    """A tool's name as it is compared: `WebSearch` and `web-search` are `web_search`."""
    spaced = "".join(f"_{letter}" if letter.isupper() and index else letter for index, letter in enumerate(name))
    return "_".join(part for part in spaced.lower().replace("-", "_").replace(" ", "_").split("_") if part)


@dataclass(frozen=True, slots=True)
class Audit:
    """What the trajectory and the model calls prove about the tools that were called."""

    required: bool
    forbidden: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools that were called, and how often."""
    removed: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools of providers that were taken out of requests: those were not called."""
    offered: Mapping[str, int] = field(default_factory=dict)
    """Forbidden tools of providers in requests that were sent: whether they were called is the provider's secret."""

    @property
    def passed(self) -> bool:
        return not self.forbidden and not self.offered

    def record(self) -> ToolAudit:
        return ToolAudit(dict(self.forbidden), self.passed, dict(self.removed), dict(self.offered))

    def enforce(self) -> None:
        """Raise an `AgentFailure` if the policy requires proof and the records disprove it."""
        if not self.required or self.passed:
            return
        did, tools = ("called", self.forbidden) if self.forbidden else ("offered to a model's provider", self.offered)
        calls = ", ".join(f"{name} ({count})" for name, count in sorted(tools.items()))
        message = f"The agent {did} tools that {_POLICY} forbids: {calls}. Its work is not scored."
        raise AgentFailure(message, code="forbidden-tool", path=f"{_POLICY}.trajectory_audit")


def audit(
    policy: AgentPolicy | None, calls: Mapping[frozenset[str], int], wire: WireTools | None = None
) -> Audit | None:
    """The audit of a rollout by the tool calls of its trajectory and of its models; None if there is no policy.

    What both show is one call: of the two counts, the larger one is taken.
    """
    if policy is None:
        return None
    forbidden = forbidden_tools(policy)
    banned = {normal_tool(name) for name in forbidden}
    called: Counter[str] = Counter()
    for names, count in calls.items():
        hits = sorted(name for name in names if normal_tool(name) in banned)
        called.update(dict.fromkeys(hits[:1], count))
    required = policy.trajectory_audit.require_no_forbidden_tool_calls or policy.search == "disabled"
    if wire is None:
        return Audit(required, called)
    for name, count in _at_the_wire(wire, forbidden, banned):
        known = next((other for other in called if _same_tool(name, other)), name)
        called[known] = max(called[known], count)
    return Audit(required, called, wire.removed, wire.offered)


def _at_the_wire(wire: WireTools, forbidden: frozenset[str], banned: set[str]) -> Iterator[tuple[str, int]]:
    """Forbidden tools that models called: functions of the agent, and tools of providers by what they do."""
    from benchflow.models.gateway.provider_tools import provider_names

    yield from ((name, count) for name, count in wire.functions.items() if normal_tool(name) in banned)
    meant = provider_names(forbidden)
    yield from ((name, count) for name, count in wire.provider.items() if name in meant)


def _same_tool(one: str, other: str) -> bool:
    from benchflow.models.gateway.provider_tools import normal_name

    return normal_tool(one) == normal_tool(other) or normal_name(one) == normal_name(other)


def skills_folder(view: TaskRuntimeView, *declared: str | None) -> str | None:
    """Where the agent finds its skills: the first of `declared`, else the environment's, as the policy allows.

    Raises `UnsupportedError` when the policy allows declared roots only and the folder is not below one.
    """
    chosen = next((folder for folder in declared if folder), view.config.environment.skills_dir)
    policy = view.namespace.agent_policy
    if chosen is None or policy is None or policy.skill_access == "installed":
        return chosen
    if policy.skill_access == "none":
        return None
    roots = [root.rstrip("/") for root in policy.allowed_skill_roots]
    if not any(chosen == root or chosen.startswith(f"{root}/") for root in roots):
        message = f"{_POLICY}.allowed_skill_roots does not include the skills folder {chosen}."
        raise UnsupportedError(message, code="skills-refused", path=f"{_POLICY}.allowed_skill_roots")
    return chosen


def hidden_folders(view: TaskRuntimeView, folders: Iterable[str | None]) -> tuple[str, ...]:
    """Skill folders of the environment that must not be there for the agent."""
    policy = view.namespace.agent_policy
    if policy is None or policy.skill_access != "none":
        return ()
    return tuple(dict.fromkeys(folder for folder in folders if folder))


@dataclass(frozen=True, slots=True)
class Secrets:
    """Declared secrets of a rollout by scope, and all values that must not be recorded."""

    by_scope: Mapping[str, Mapping[str, str]] = field(repr=False)
    redacted: frozenset[str] = field(repr=False)

    def of(self, scope: str) -> Mapping[str, str]:
        """Variables of one scope."""
        return self.by_scope.get(scope, {})


def gather_secrets(view: TaskRuntimeView, machine: Mapping[str, str], scopes: Iterable[str]) -> Secrets:
    """The secrets of the scopes that this rollout enters.

    One that is required and not set, or too short to be kept out of records, is an `EnvironmentFailure`.
    """
    entered = frozenset(scopes)
    by_scope: dict[str, dict[str, str]] = {}
    declared: list[str] = []
    for index, secret in enumerate(view.namespace.secrets):
        name = secret.env or secret.name
        path = f"benchflow.secrets[{index}]"
        declared.append(name)
        if secret.scope not in entered:
            continue
        value = machine.get(name)
        if value:
            if len(value) < SHORTEST_DECLARED:
                message = f"{path}: the value of {name} has fewer than {SHORTEST_DECLARED} characters."
                raise EnvironmentFailure(message, code="secret-too-short", path=path)
            by_scope.setdefault(secret.scope, {})[name] = value
        elif secret.required:
            message = f"{path} needs the variable {name}, which is not set on this machine."
            raise EnvironmentFailure(message, code="variable-missing", path=path)
    found = secret_values(machine, declared=declared, taken=taken_variables(view))
    if allows("build", machine):
        from benchflow.sandbox.machine_settings.collected import current

        found |= current(machine).secrets
    return Secrets(by_scope, frozenset(found))


def taken_variables(view: TaskRuntimeView) -> frozenset[str]:
    """Variables of the machine that the package takes by `${NAME}`, in its compose file too."""
    tables = [view.config.oracle.env, *variable_tables(view)]
    return _taken_by_services(view).union(forwarded(view), *(referenced_variables(table) for table in tables))


def variable_tables(view: TaskRuntimeView) -> list[Mapping[str, str]]:
    """The variables that a package sets, wherever it does, except those of its oracle."""
    config = view.config
    verifiers = (config.verifier, *(step.config.verifier for step in view.steps))
    tables: list[Mapping[str, str]] = [config.environment.env, *(verifier.env for verifier in verifiers)]
    tables += [verifier.environment.env for verifier in verifiers if verifier.environment is not None]
    tables += [role.env for role in view.roles.values()]
    tables += [server.env for server in config.environment.mcp_servers]
    tables += [server.headers for server in config.environment.mcp_servers]
    return [*tables, view.manifest.env] if view.manifest is not None else tables


def forwarded(view: TaskRuntimeView) -> tuple[str, ...]:
    """Variables of the machine that the services of a package take under their own names."""
    return view.manifest.forward_env.keys if view.manifest is not None else ()


def _taken_by_services(view: TaskRuntimeView) -> frozenset[str]:
    folder = view.environment_dir
    file = next((folder / name for name in COMPOSE_FILES if (folder / name).is_file()), None) if folder else None
    if file is None:
        return frozenset()
    from benchflow.sandbox.composed.compose_file import taken_variables
    from benchflow.sandbox.composed.composition import compose_variables

    return taken_variables(file) - compose_variables(file.parent, view.config.environment).keys()


def markers_left(package: TaskPackage) -> list[Issue]:
    """Every placeholder that is left, as `bench tasks check` reports it."""
    if not any(entry.data is not None and _MARKER in entry.data for entry in package.files.files.values()):
        return []
    from benchflow.task.checks.schema_level import check_schema
    from benchflow.task.checks.structural_level import check_structure

    return [
        issue for check in (check_schema, check_structure) for issue in check(package) if issue.code == _MARKER_LEFT
    ]


def require_finished(package: TaskPackage) -> None:
    """Raise a `PackageError` for the first marker in anything but the held-out solution, which an agent never meets."""
    for issue in markers_left(package):
        if not (issue.file or "").startswith(_HELD_OUT):
            message = f"{issue.file}:{issue.line}: {issue.message}"
            raise PackageError(message, code=issue.code, file=issue.file, line=issue.line)


class Judge(Protocol):
    """Somebody whom a verifier asks."""

    @property
    def name(self) -> str:
        """A model, or an agent."""

    def check_now(self) -> None:
        """Raise `ModelFailure` or `JudgeFailure` if it is already clear that it cannot be asked; may take a moment."""


@dataclass(frozen=True, slots=True)
class _AgentJudge:
    """An agent that judges."""

    scope: Scope
    strategy: AgentJudgeStrategy
    variables: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return " ".join(part for part in (self.strategy.agent, self.strategy.model) if part)

    def check_now(self) -> None:
        from benchflow.verifier.judging.agent_as_judge import make_judge

        try:
            make_judge(self.scope, self.strategy, self.strategy.model, self.variables).check(self.variables)
        except UsageError as error:
            message = f"The judge '{self.strategy.agent}' cannot be used: {error}"
            raise JudgeFailure(message, code=error.code) from error


def judges(
    view: TaskRuntimeView,
    machine: Mapping[str, str],
    steps: Iterable[str | None] = (None,),
    *,
    strategy: str | None = None,
) -> list[Judge]:
    """Whom the verifiers of these steps ask, by the declared strategy or the one that is named.

    A variable that a verifier takes and that is not set is an `EnvironmentFailure`.
    """
    found: list[Judge] = []
    for step in steps:
        scope = scope_of(view, step)
        asked = list(_judges(scope, strategy))
        if not asked:
            continue
        from benchflow.models import ChatModel  # most packages have no judge

        variables = {**machine, **verifier_variables(scope, machine).values}
        found += [ChatModel(model, variables) for model in sorted({item for item in asked if isinstance(item, str)})]
        found += [_AgentJudge(scope, item, variables) for item in asked if not isinstance(item, str)]
    return found


def judge_models(view: TaskRuntimeView) -> frozenset[str]:
    """The models that the verifiers of a package call."""
    scopes = [scope_of(view, step.config.name) for step in view.steps] or [scope_of(view, None)]
    return frozenset(asked for scope in scopes for asked in _judges(scope, None) if isinstance(asked, str))


def require_judges(asked: Iterable[Judge]) -> None:
    """Raise a `JudgeFailure` for the first that cannot be asked; nothing is sent. May take a moment."""
    from benchflow.models import ModelFailure

    for judge in asked:
        try:
            judge.check_now()
        except ModelFailure as failure:
            message = str(failure).replace("The model", "The judge", 1)
            raise JudgeFailure(message, code=_CODES.get(failure.code, "judge-unavailable")) from failure


def _judges(scope: Scope, name: str | None) -> Iterator[str | AgentJudgeStrategy]:
    """The models that a strategy calls, itself or through others, and the agents that judge."""
    _, strategy = scope.strategy(name)
    match strategy:
        case LLMJudgeStrategy():
            yield strategy.model or _rubric_model(scope, strategy.rubric) or scope.config.judge.model
        case AgentJudgeStrategy() if strategy.agent is not None:
            yield strategy
        case AgentJudgeStrategy():
            yield strategy.model or scope.config.judge.model
        case HybridStrategy():
            for factor in strategy.factors.values():
                yield from _judges(scope, factor.strategy)
        case GainStrategy():
            yield from _judges(scope, strategy.strategy)
        case AssessorStrategy():
            model = assessor_model(strategy, scope.config.judge.model)
            if model is not None:
                yield model


def assessor_model(strategy: AssessorStrategy, otherwise: str) -> str | None:
    """The model that an assessor asks: its own, or the judge of a declared game; None if it asks none that we know."""
    if strategy.agent is not None:
        kind, _, argument = strategy.agent.partition(":")
        return (argument or strategy.model) if kind == "model" else None
    judge = strategy.config.get("judge")
    return (judge.get("model") or strategy.model or otherwise) if isinstance(judge, Mapping) else None


def _rubric_model(scope: Scope, path: str) -> str | None:
    """The model that a rubric names; one that cannot be read is the verifier's to report."""
    from benchflow.rewards import load_rubric

    file = scope.file(path)
    if file is None and scope.document is None and (scope.view.files.root / path).is_file():
        file = scope.view.files.root / path
    try:
        return load_rubric(file, file=path).judge.model if file is not None else None
    except PackageError:
        return None


def chosen_without_proof(view: TaskRuntimeView, isolation: str | None) -> Chosen | None:
    """The isolation of verifiers, by step, where the user chose it (`isolation`) or there is no oracle.

    None where a proof is needed: `find_proof` gives it.
    """
    if isolation in RUNGS:
        rung: Rung = isolation  # type: ignore[assignment] # it is one of them
        return {step: ChosenIsolation(Isolation(rung, "user", None)) for step in _steps(view)}
    steps = steps_by_proof(view, isolation)
    if steps and _has_oracle(view):
        return None
    message = "The package has no oracle, so no isolation can be proven; it is verified at 'open'."
    return dict.fromkeys(steps, unproven("proof-no-oracle", message))


def _steps(view: TaskRuntimeView) -> tuple[str | None, ...]:
    return tuple(step.config.name for step in view.steps) or (None,)


def steps_by_proof(view: TaskRuntimeView, isolation: str | None) -> tuple[str | None, ...]:
    """The steps whose isolation a proof chooses."""
    asked = isolation == AUTO
    return tuple(step for step in _steps(view) if asked or config_of(view, step).wanted_isolation == AUTO)


def _has_oracle(view: TaskRuntimeView) -> bool:
    """Whether every step has a solution."""
    folders = [step.oracle_dir or view.oracle_dir for step in view.steps] or [view.oracle_dir]
    return all(folder is not None and (folder / SCRIPT).is_file() for folder in folders)


def unproven(code: str, message: str) -> ChosenIsolation:
    return ChosenIsolation(Isolation(OPEN, "default", None), note=Issue(code, "warning", ISOLATION_KEY, message))
